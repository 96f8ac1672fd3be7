"""A training by JAX and optax, on the CPU: `jax_train.py OUT STEPS STEP_S`; a loss a line."""

import sys
import time

import jax
import jax.numpy as jnp
import optax

import gandiva_slurm as gandiva

key = jax.random.PRNGKey(0)
params = {"in": jax.random.normal(key, (64, 256)) * 0.1, "out": jax.random.normal(key, (256, 4)) * 0.1}
optimizer = optax.adam(1e-3)
state = optimizer.init(params)


@jax.jit
def step(params, state, key):
    def loss_of(params):
        hidden = jnp.tanh(jax.random.normal(key, (8, 64)) @ params["in"])
        return jnp.mean((hidden @ params["out"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, loss


with open(sys.argv[1], "a", buffering=1) as out:
    for number in gandiva.steps(range(int(sys.argv[2]))):
        params, state, loss = step(params, state, jax.random.fold_in(key, number))
        out.write(float(loss).hex() + "\n")
        time.sleep(float(sys.argv[3]))
