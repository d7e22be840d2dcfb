# One virtual environment; each target installs what it needs, once.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

.PHONY: demo docs docs-serve playground lectures notebooks bench test test-tensorflow test-jax test-slow test-hours check format clean \
	test-slow-tensorflow test-slow-jax test-bare-torch test-bare-jax
.DELETE_ON_ERROR:

# `make demo ARGS="--model conv --out runs/conv"` trains another model.
demo: .venv/installed-demo
	$(BIN)/keras-tfm train --task dates --out runs/dates --num_layers 2 --dropout 0 --label_smoothing 0 --schedule cosine \
		--learning_rate 0.003 --warmup_steps 200 --steps 1400 --steps_per_epoch 200 --batch_tokens 1024 --num_shapes 4 $(ARGS)

# Material for MkDocs prints an announcement at each start unless told not to.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: .venv/installed-docs
	$(BIN)/mkdocs build --strict
	$(MAKE) playground
	$(BIN)/python docs/check_links.py site

docs-serve: .venv/installed-docs
	$(BIN)/mkdocs serve --livereload

# The translator of software texts as a page. MkDocs empties the folder of the site, so this comes after it.
playground: .venv/installed-docs node_modules/.package-lock.json
	$(BIN)/keras-tfm export saved_models/software/keras --format web --max_length 64 --title "Software texts" \
		--target_language de --texts examples/software.txt --explain --out site/playground

# LiteRT.js and D3, which pages run, and what drives Firefox in tests.
node_modules/.package-lock.json: package.json
	npm install --no-package-lock --no-audit --no-fund --loglevel=error
	touch $@

# The claims of the lecture notes, measured; the same command resumes. `make lectures ARGS="06_scaling --again"` runs one.
lectures: .venv/installed-lectures
	KERAS_BACKEND=jax $(BIN)/python examples/lectures/run.py $(ARGS)

# The pages of the lectures as Jupyter notebooks; the site has them for download, too.
notebooks:
	$(PYTHON) docs/notebooks.py notebooks

# Side by side with peers, in about half an hour. `make bench DATA=… MODEL=… ARGS="--only decoding"` runs one.
bench: .venv/installed-bench
	$(BIN)/python benchmarks/run.py $(if $(DATA),--data $(DATA)) $(if $(MODEL),--model $(MODEL)) $(ARGS)

test: test-tensorflow test-jax

# JAX compiles each small operation separately: let the workers share what they have compiled.
test-jax test-slow-jax: export JAX_COMPILATION_CACHE_DIR = $(CURDIR)/.venv/jax-cache
test-jax test-slow-jax: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = 0
# The examples in docstrings run on TensorFlow only.
test-jax test-slow-jax: ARGS ?= tests
test-tensorflow test-jax: test-%: .venv/installed-test
	KERAS_BACKEND=$* $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow and not hours" $(ARGS)

# What CI runs besides `make test`, in parts that also run alone.
test-slow: test-slow-tensorflow test-slow-jax test-bare-torch test-bare-jax

# The tests in a browser need Chromium and LiteRT.js. What is skipped, and why, is printed at the end.
test-slow-tensorflow test-slow-jax: test-slow-%: .venv/installed-test-slow $(if $(shell command -v npm),node_modules/.package-lock.json)
	KERAS_BACKEND=$* $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "slow and not hours" $(ARGS)

# PyTorch and JAX where TensorFlow is not installed, with the package as its wheel installs it.
BARE_torch := ops layers models decoding runtimes/test_devices.py data/test_batches.py training/test_losses.py \
	training/test_runs.py training/test_trainer.py test_keras_user.py test_translator.py test_imports.py test_editors.py
BARE_jax := training/test_trainer.py test_translator.py test_imports.py test_editors.py
test-bare-torch test-bare-jax: test-bare-%: .venv-%/installed
	rm -rf build
	.venv-$*/bin/pip install -qq --force-reinstall --no-deps .
	cd tests && KERAS_BACKEND=$* ../.venv-$*/bin/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow and not hours" \
		$(BARE_$*) $(ARGS)

# What takes too long for CI; docs/design.md says when it was run last.
test-hours: .venv/installed-test-slow
	KERAS_BACKEND=jax $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m hours $(ARGS)

check: .venv/installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed-check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-jax .venv-torch

.venv/installed-demo: EXTRAS = tensorflow,train
.venv/installed-docs: EXTRAS = docs,litert,tensorflow
.venv/installed-lectures: EXTRAS = lectures
.venv/installed-bench: EXTRAS = bench
.venv/installed-test: EXTRAS = test
.venv/installed-test-slow: EXTRAS = test-slow
.venv/installed-check: EXTRAS = check
.venv/installed-%: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -qq -e '.[$(EXTRAS)]'
	touch $@

# PyTorch's version is a CPU build, while others can bring gigabytes of CUDA packages along.
.venv-torch/installed: PACKAGES = torch==2.13.0
.venv-jax/installed .venv-torch/installed: .venv-%/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install -q --upgrade pip
	.venv-$*/bin/pip install -qq '.[$*,train]' $(PACKAGES) 'pytest>=9,<9.2' 'pytest-xdist>=3.8,<4'
	touch $@
