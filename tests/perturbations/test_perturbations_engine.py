"""What every perturbation shares: keys, slices, transformations of JAX, sweeps."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxrobust as jr
from jaxrobust.perturbations.base import Perturbation
from jaxrobust.perturbations.sweep import single, sweep

P = jr.perturbations
KEY = jax.random.key(17)
rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(size=(3, 2, 2)), jnp.float32)
SCALES = jnp.asarray(rng.uniform(0.5, 2, size=X.shape), jnp.float32)
MASKS = jnp.asarray(rng.random(X.shape) < 0.7)
ROOTS = rng.normal(size=(3, 4, 4))
MEMBERS = jnp.asarray(rng.normal(size=(3, 5, 2, 2)), jnp.float32)
TABLES = jnp.asarray(rng.normal(size=(3, 6, 2, 2)), jnp.float32)
ONE_EACH = jnp.array([0.2, 0.5, 0.9])


def jitter(key, x):
    return x + jax.random.uniform(key, x.shape, x.dtype)


def make(name, at):
    """A perturbation whose parameters are each example's own; ``at`` takes one example's."""
    return {
        "gaussian": lambda: P.gaussian(
            at(ONE_EACH),
            feature_scale=at(SCALES),
            where=at(MASKS),
            probability=at(ONE_EACH),
            integer=at(~MASKS),
        ),
        "multivariate_normal": lambda: P.multivariate_normal(
            at(ROOTS @ ROOTS.transpose(0, 2, 1)), mean=at(SCALES)
        ),
        "uniform_ball": lambda: P.uniform_ball(at(ONE_EACH), norm="l2"),
        "resample": lambda: P.resample(at(TABLES), where=at(MASKS), probability=at(ONE_EACH)),
        "clipped": lambda: P.clipped(P.gaussian(at(ONE_EACH)), -at(SCALES), at(SCALES)),
        "chain": lambda: P.chain(
            P.gaussian(at(ONE_EACH)), P.uniform_ball(at(ONE_EACH), norm="linf"), P.gaussian(0.1)
        ),
        "sampler": lambda: P.chain(P.from_sampler(jitter), P.gaussian(at(ONE_EACH))),
    }[name]()


NAMES = [
    "gaussian",
    "multivariate_normal",
    "uniform_ball",
    "resample",
    "clipped",
    "chain",
    "sampler",
]


@functools.partial(jax.jit, static_argnums=1)
def latent_of(key, size):
    return jax.random.normal(key, (size,))


@jax.jit
def transform(perturbation, z, x):
    return perturbation.transform(z, x)


@pytest.mark.parametrize("name", NAMES)
def test_draws_and_parameters_are_those_of_a_plain_loop(name):
    x_hat = jr.perturb(make(name, lambda a: a), KEY, X, replicate=6)
    for i in range(3):
        z = key = jax.random.fold_in(jax.random.fold_in(KEY, 6), i)
        one = make(name, lambda a: a[i])  # noqa: B023
        if one.has_latent:
            z = latent_of(key, one.latent_size((2, 2)))
        expected = transform(one, z, X[i])
        np.testing.assert_allclose(x_hat[i], expected, rtol=1e-6, atol=1e-6)
    assert (x_hat != X).any()


def test_members_are_those_of_a_plain_loop():
    x_hat = jr.perturb(P.ensemble(MEMBERS), KEY, X)
    for i in range(3):
        z = latent_of(jax.random.fold_in(jax.random.fold_in(KEY, 0), i), 5)
        members = np.asarray(MEMBERS[i])
        spread = (members - members.mean(axis=0)) / math.sqrt(5 - 1)
        expected = np.asarray(X[i]) + np.tensordot(np.asarray(z), spread, 1)
        np.testing.assert_allclose(x_hat[i], expected, rtol=1e-5, atol=1e-6)


def test_draws_are_standard_normal_and_independent():
    x = jnp.zeros((4000, 2))
    noise = np.stack([jr.perturb(P.gaussian(1.0), KEY, x, replicate=j) for j in (0, 1)])
    assert scipy.stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    # Between features, examples and replicates.
    for a, b in [
        (noise[0, :, 0], noise[0, :, 1]),
        (noise[0, :-1, 0], noise[0, 1:, 0]),
        (noise[0, :, 0], noise[1, :, 0]),
    ]:
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(len(a))


def test_replicates_and_keys_make_different_draws():
    noise = P.gaussian(1.0)
    copies = [
        jr.perturb(noise, key, X, replicate=j)
        for key in (KEY, jax.random.key(18))
        for j in (0, 1, np.int64(2), jnp.int32(3))
    ]
    assert len({np.asarray(copy).tobytes() for copy in copies}) == 8
    np.testing.assert_array_equal(jr.perturb(noise, KEY, X), copies[0])


def test_an_example_keeps_its_draw_in_any_batch():
    noise = P.gaussian(1.0)
    np.testing.assert_array_equal(jr.perturb(noise, KEY, X)[:2], jr.perturb(noise, KEY, X[:2]))


def test_other_kinds_of_keys():
    key = jax.random.key(17, impl="rbg")
    whole = jr.perturb(P.gaussian(1.0), key, X)
    # A hardware generator gives other numbers for another batch; this must not.
    np.testing.assert_array_equal(whole[:2], jr.perturb(P.gaussian(1.0), key, X[:2]))
    other = jr.perturb(P.gaussian(1.0), jax.random.key(18, impl="rbg"), X)
    assert (whole != other).all()


@pytest.mark.parametrize(
    ("perturbation", "size"),
    [
        (P.gaussian(1.0), 6),
        (P.gaussian(1.0, probability=1), 6),
        (P.gaussian(1.0, probability=0.5), 12),
        (P.gaussian(1.0, probability=jnp.asarray(1.0)), 12),
        (P.multivariate_normal(np.eye(6)), 6),
        (P.ensemble(np.ones((1, 9, 6))), 9),
        (P.uniform_ball(1.0, norm="linf"), 6),
        (P.uniform_ball(1.0, norm="l1"), 7),
        (P.uniform_ball(1.0, norm="l2"), 8),
        (P.uniform_sphere(1.0, norm="l1"), 6),
        (P.uniform_sphere(1.0, norm="l2"), 6),
        (P.gaussian_sphere(1.0, norm="linf"), 6),
        (P.clipped(P.gaussian(1.0), 0.0, 1.0), 6),
        (P.chain(P.gaussian(1.0), P.uniform_ball(1.0, norm="l2")), 14),
        (P.resample(np.ones((4, 2, 3))), 6),
        (P.resample(np.ones((4, 2, 3)), probability=0.5), 12),
    ],
)
def test_latent_sizes(perturbation, size):
    assert perturbation.has_latent
    assert perturbation.latent_size((2, 3)) == size
    assert jax.eval_shape(lambda k: perturbation.draw(k, (2, 3)), KEY).shape == (size,)


# --- transformations of JAX -----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_perturbations_are_pytrees_whose_values_are_data(name):
    noise = make(name, lambda a: a)
    leaves, treedef = jax.tree.flatten(noise)
    assert leaves
    again = jax.tree.unflatten(treedef, leaves)
    assert type(again) is type(noise)
    other = jax.tree.map(lambda leaf: leaf if leaf.dtype == bool else leaf / 2, noise)
    assert jax.tree.structure(other) == treedef
    assert hash(jax.tree.structure(other)) == hash(treedef)
    with pytest.raises(dataclasses.FrozenInstanceError):
        noise.sigma = 1.0


def test_jit_and_vmap_give_the_plain_result():
    sigmas = jnp.array([0.5, 2.0])
    plain = [jr.perturb(P.gaussian(sigma), KEY, X) for sigma in sigmas]
    many = jax.jit(jax.vmap(lambda s: jr.perturb(P.gaussian(s), KEY, X)))(sigmas)
    np.testing.assert_allclose(many, plain, rtol=1e-6)
    # A stack of perturbations is one perturbation with stacked leaves.
    stack = jax.tree.map(lambda *a: jnp.stack(a), *(P.gaussian(s) for s in sigmas))
    many = jax.vmap(jr.perturb, (0, None, None))(stack, KEY, X)
    np.testing.assert_allclose(many, plain, rtol=1e-6)
    batches = jnp.stack([X, 2 * X])
    many = jax.vmap(jr.perturb, (None, None, 0))(P.gaussian(1.0), KEY, batches)
    np.testing.assert_allclose(many[1] - 2 * X, many[0] - X, atol=1e-6)  # one key, one draw


def test_gradients_reach_the_parameters():
    def total(sigma):
        return jr.perturb(P.gaussian(sigma, feature_scale=SCALES), KEY, X).sum()

    unit = ((jr.perturb(P.gaussian(1.0), KEY, X) - X) * SCALES).sum()
    gradient = jax.jit(jax.grad(total))
    for sigma in (0.0, 0.3):
        assert gradient(sigma) == pytest.approx(float(unit), rel=1e-4)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_gradients_reach_the_radius_and_the_latent(norm):
    z = jnp.linspace(-0.9, 1.1, P.uniform_ball(1.0, norm=norm).latent_size((4,)))

    def moved(radius, z):
        return P.uniform_ball(radius, norm=norm).transform(z, jnp.zeros(4)).sum()

    value, (by_radius, by_latent) = jax.jit(jax.value_and_grad(moved, (0, 1)))(2.0, z)
    assert by_radius == pytest.approx(float(value) / 2, rel=1e-5)
    assert np.isfinite(by_latent).all()
    assert (by_latent != 0).any()


@pytest.mark.parametrize("cov", [np.eye(3), np.diag([1.0, 1.0, 4.0]), np.full((3, 3), 0.5)])
def test_gradients_reach_the_covariance_where_eigenvalues_are_equal(cov):
    # By Euler's theorem: the noise grows like the square root of a factor of the covariance.
    z = jnp.array([1.0, -0.5, 2.0])

    def moved(factor):
        noise = P.multivariate_normal(factor * jnp.asarray(cov, jnp.float32))
        return noise.transform(z, jnp.zeros(3)).sum()

    value, slope = jax.jit(jax.value_and_grad(moved))(1.0)
    assert slope == pytest.approx(float(value) / 2, rel=2e-3, abs=1e-3)


@dataclasses.dataclass(frozen=True)
class Shift(Perturbation):
    """A perturbation of a user's own, as the base class describes."""

    by: jax.Array
    traces: list = dataclasses.field(metadata={"static": True}, hash=False, compare=False)

    def latent_size(self, event_shape):
        return 1

    def core_ndims(self, event_ndim):
        return {"by": 0}

    def transform(self, z, x):
        self.traces.append(x.shape)
        return x + self.by * z[0]


jax.tree_util.register_dataclass(Shift)


def test_other_values_do_not_retrace():
    traces = []
    for by, seed, replicate in [(0.1, 0, 0), (0.7, 1, 0), (2.0, 2, 5)]:
        shift = Shift(jnp.asarray(by), traces)
        noise = P.chain(shift, P.gaussian(by, probability=by / 4), P.uniform_ball(by, norm="l2"))
        noise = P.clipped(noise, -by, by)
        jr.perturb(noise, jax.random.key(seed), X, replicate=replicate)
    assert traces == [(2, 2)]
    jr.perturb(P.chain(Shift(jnp.array([0.1, 0.2, 0.3]), traces)), KEY, X)  # another structure
    assert traces == [(2, 2)] * 2


def test_a_perturbation_of_a_users_own():
    x_hat = jr.perturb(Shift(jnp.array([0.0, 1.0, 2.0]), []), KEY, X)
    moved = np.asarray(x_hat - X).reshape(3, 4)
    np.testing.assert_allclose(moved, moved[:, :1] * np.ones(4), rtol=1e-5)
    assert (moved[0] == 0).all()
    assert (moved[1:] != 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["gaussian", "multivariate_normal", "resample", "uniform_ball"])
def test_the_dtype_of_the_input_is_kept(name, dtype):
    made = jax.eval_shape(lambda x: jr.perturb(make(name, lambda a: a), KEY, x), X.astype(dtype))
    assert (made.shape, made.dtype) == (X.shape, dtype)


def test_double_precision():
    with jax.enable_x64(True):
        x = jnp.ones((3000, 2), jnp.float64)
        small = P.chain(P.gaussian(1e-9), P.multivariate_normal(1e-18 * np.eye(2)))
        noise = np.asarray(jr.perturb(small, jax.random.key(0), x) - 1) / 1e-9
        assert noise.dtype == np.float64
        # In single precision nothing would be left of it.
        assert scipy.stats.kstest(noise.ravel() / math.sqrt(2), "norm").pvalue > 1e-3
        single_precision = jax.eval_shape(
            lambda x: jr.perturb(P.gaussian(1.0), jax.random.key(0), x), x.astype(jnp.float32)
        )
        assert single_precision.dtype == jnp.float32


# --- sweeps ---------------------------------------------------------------------------------------

POINTS = jnp.array([0.1, 0.4, 0.9])


def test_a_sweep_stacks_what_varies_and_keeps_the_rest_once():
    made = sweep(lambda s: P.gaussian(s, feature_scale=SCALES, probability=s), POINTS)
    assert made.size == 3
    assert [leaf.shape for leaf in made.varying] == [(3,), (3,)]
    assert [leaf.shape for leaf in made.shared] == [SCALES.shape]
    for k in range(3):
        at = made.at(tuple(leaf[k] for leaf in made.varying))
        plain = P.gaussian(POINTS[k], feature_scale=SCALES, probability=POINTS[k])
        assert jax.tree.structure(at) == jax.tree.structure(plain)
        jax.tree.map(np.testing.assert_array_equal, at, plain)


def test_a_sweep_of_other_points_has_the_same_structure():
    def noise(s):
        return P.clipped(P.gaussian(s), -s, 5.0)

    first, second = sweep(noise, POINTS), sweep(noise, 2 * POINTS)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert jax.tree.structure(sweep(noise, POINTS[:2])) != jax.tree.structure(first)


def test_the_template_of_a_sweep_tells_its_structure():
    made = sweep(lambda s: P.gaussian(s * ONE_EACH, feature_scale=SCALES), POINTS)
    template = made.template()
    assert template.sigma.shape == (3,)
    assert template.latent_size((2, 2)) == 4
    own = template.per_example(2)
    assert (own.sigma, own.feature_scale) == (True, True)


def test_a_single_point_is_a_sweep_of_size_one():
    noise = P.gaussian(0.3, feature_scale=SCALES)
    made = single(noise)
    assert (made.size, made.varying) == (1, ())
    jax.tree.map(np.testing.assert_array_equal, made.at(()), noise)


def test_a_sweep_inside_a_trace():
    made = jax.jit(
        lambda points: sweep(lambda s: P.gaussian(s, feature_scale=2 * points[0]), points)
    )
    made = made(POINTS)
    np.testing.assert_array_equal(made.varying[0], POINTS)


@pytest.mark.parametrize(
    ("perturbation", "match"),
    [
        (lambda s: P.gaussian(s - 0.5), "sigma must be finite and not negative"),
        (lambda s: P.gaussian(1.0, probability=2 * s), "probability must be from 0 to 1"),
        (lambda s: P.uniform_ball(1 / (s - s), norm="l2"), "radius must be finite"),
        (lambda s: P.clipped(P.gaussian(1.0), s, 0.5), "lower must not exceed upper"),
        (lambda s: P.clipped(P.gaussian(1.0), s, jnp.full(3, 0.5)), "lower must not exceed upper"),
        (lambda s: P.multivariate_normal(jnp.eye(2) - s * 2), "cov must be finite, symmetric and"),
    ],
)
def test_a_sweep_checks_the_values_of_every_point(perturbation, match):
    with pytest.raises(ValueError, match=f"^{match}"):
        sweep(perturbation, POINTS)


def test_bounds_that_vary_are_compared_point_by_point():
    # Three points and three features: stacked, they would be compared crosswise.
    upper = jnp.array([0.95, 5.0, 0.95])
    made = sweep(lambda s: P.clipped(P.gaussian(1.0), s, upper), POINTS)
    assert made.size == 3


def test_a_sweep_of_what_is_no_perturbation():
    with pytest.raises(TypeError, match="perturbation must be"):
        sweep(lambda s: s, POINTS)
