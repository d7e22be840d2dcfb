"""Moves what stays the same out of JAX' loops, such as weights cast to bfloat16: XLA does not, on GPUs."""

import jax
from jax import lax
from jax.extend.core import Literal, jaxpr_as_fun
from jax.extend.core.primitives import while_p


def hoisted(function):
    """`function`, of arrays in any tree, whose loops compute in advance what does not change from step to step."""

    def run(*arguments):
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        variables = *program.jaxpr.constvars, *program.jaxpr.invars
        values = dict(zip(variables, [*program.consts, *jax.tree.leaves(arguments)], strict=True))
        outputs = _evaluate(program.jaxpr, program.jaxpr.eqns, values)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return run


def _evaluate(jaxpr, equations, values):
    """The outputs of a program, given the values of its variables so far and the equations that are left."""
    for equation in equations:
        _compute(equation, values)
    return [_value(variable, values) for variable in jaxpr.outvars]


def _value(variable, values):
    return variable.val if isinstance(variable, Literal) else values[variable]


def _compute(equation, values):
    inputs = [_value(variable, values) for variable in equation.invars]
    if equation.primitive is while_p:
        outputs = _loop(*inputs, **equation.params)
    else:
        outputs = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
    several = equation.primitive.multiple_results
    values.update(zip(equation.outvars, outputs if several else [outputs], strict=True))


def _loop(*inputs, cond_nconsts, cond_jaxpr, body_nconsts, body_jaxpr):
    """A `while_loop` that computes beforehand what depends on its constants only and does not need more memory."""
    first = cond_nconsts + body_nconsts
    of_condition, of_body, state = inputs[:cond_nconsts], inputs[cond_nconsts:first], [*inputs[first:]]
    body = body_jaxpr.jaxpr
    fixed = dict(zip(body.constvars, body_jaxpr.consts, strict=True)) | dict(zip(body.invars, of_body, strict=False))
    left = []
    for equation in body.eqns:
        variables = {x for x in equation.invars if not isinstance(x, Literal)}
        sizes = [sum(_bytes(x) for x in group) for group in (equation.outvars, variables)]
        if variables and variables <= fixed.keys() and not equation.effects and sizes[0] <= sizes[1]:
            _compute(equation, fixed)
        else:
            left.append(equation)

    def advance(state):
        return _evaluate(body, left, fixed | dict(zip(body.invars[body_nconsts:], state, strict=True)))

    def unfinished(state):
        return jaxpr_as_fun(cond_jaxpr)(*of_condition, *state)[0]

    return lax.while_loop(unfinished, advance, state)


def _bytes(variable):
    return variable.aval.size * variable.aval.dtype.itemsize
