import os
import pathlib
import subprocess
import sys

import pytest
from conftest import BACKEND, once, refused

from keras_tfm import cache_compilations
from keras_tfm.common import extras
from keras_tfm.runtimes import compilation_cache

ON_JAX = pytest.mark.skipif(BACKEND != "jax" or not extras.is_installed("filelock"), reason="the cache is JAX's")
VARIABLES = [compilation_cache.FOLDER, compilation_cache.SWITCH, "JAX_COMPILATION_CACHE_MAX_SIZE"]
VARIABLES += ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"]
TRANSLATE = [sys.executable, "-m", "keras_tfm", "translate", "--backend", "jax", "--text", "3. Mai 2023"]
# Compiles some programs, and prints how many of them JAX found in its cache, and their result.
COMPILE = """
import sys, keras_tfm
keras_tfm.cache_compilations(sys.argv[1], max_bytes=int(sys.argv[2]))
import jax
found = []
jax.monitoring.register_event_listener(lambda name, **_: found.append(name) if name.endswith("cache_hits") else None)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
total = sum(float(jax.jit(lambda x: jax.numpy.sin(x) * n)(1.0)) for n in range(int(sys.argv[3])))
print(len(found), total)
"""


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # what a test sets is undone afterwards
        monkeypatch.delenv(name)


def compiled(folder, max_bytes=10**9, count=5):
    """A process that compiles."""
    command = [sys.executable, "-c", COMPILE, str(folder), str(max_bytes), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answers(*processes):
    """What processes have printed: [(number of programs that they found, result)]."""
    outputs = [process.communicate() for process in processes]
    assert all(not process.returncode for process in processes) and not any("Warning" in error for _, error in outputs)
    return [tuple(map(float, output.split())) for output, _ in outputs]


def size(folder):
    return sum(path.stat().st_size for path in folder.glob(f"*{compilation_cache.SUFFIX}"))


@ON_JAX
def test_processes_that_share_a_cache_compute_the_same_at_once_and_later(tmp_path):
    (_, one), (_, two) = answers(compiled(tmp_path), compiled(tmp_path))
    assert one == two and size(tmp_path)
    assert answers(compiled(tmp_path))[0] == (5, one)


@ON_JAX
def test_the_cache_keeps_to_its_size(tmp_path):
    answers(compiled(tmp_path))
    limit = size(tmp_path) // 2
    answers(compiled(tmp_path, limit, 10))
    assert 0 < size(tmp_path) <= limit


@ON_JAX
def test_what_a_killed_process_leaves_is_replaced(tmp_path):
    answers(compiled(tmp_path))
    entry = max(tmp_path.glob(f"*{compilation_cache.SUFFIX}"))
    content = entry.read_bytes()
    entry.write_bytes(content[:10])
    entry.with_name(entry.name.replace(compilation_cache.SUFFIX, compilation_cache.TIME_SUFFIX)).unlink()
    assert answers(compiled(tmp_path))[0][0] == 4
    assert answers(compiled(tmp_path))[0][0] == 5 and len(entry.read_bytes()) > 10


@ON_JAX
@pytest.mark.slow
def test_the_command_caches_in_the_folder_of_the_user_unless_it_is_turned_off(tmp_path):
    def translated(**environment):
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **environment}
        return subprocess.run(TRANSLATE, capture_output=True, text=True, check=True, env=environment).stdout

    without = translated(**{compilation_cache.SWITCH: "0"})
    assert not (tmp_path / "keras_tfm").exists()
    assert translated() == without == translated()
    (folder,) = (tmp_path / "keras_tfm" / "jax").iterdir()
    assert size(folder)


@once
def test_the_settings_of_the_user_stay(monkeypatch, tmp_path):
    monkeypatch.setenv(compilation_cache.FOLDER, str(tmp_path / "own"))
    assert cache_compilations() == tmp_path / "own" and not any(tmp_path.iterdir())
    assert "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ
    monkeypatch.setenv(compilation_cache.SWITCH, "false")
    assert cache_compilations(tmp_path / "other") is None and not any(tmp_path.iterdir())


@once
def test_a_folder_that_others_can_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with refused("folder"):
        cache_compilations(tmp_path)
    with refused("max_bytes"):
        cache_compilations(tmp_path / "own", max_bytes=0)
    assert compilation_cache.FOLDER not in os.environ
    made = cache_compilations(tmp_path / "own")
    assert made.stat().st_mode & 0o077 == 0 and os.environ[compilation_cache.FOLDER] == str(made)


@once
def test_the_default_folder_is_in_the_cache_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compilation_cache.default_folder().is_relative_to(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compilation_cache.default_folder().is_relative_to(pathlib.Path.home())
