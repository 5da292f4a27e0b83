"""The picture of directional noisy risk: what is in it, and that it is valid SVG."""

import xml.etree.ElementTree as ET

import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr
from jaxrobust.report.directional_plots import risk_curves_plot

KAPPA = jnp.array([0.0, 2.0, 4.0, 9.0])


def result(curve, star=2.0):
    mean = jnp.asarray(curve)
    fields = dict.fromkeys(jr.DirectionalRisk._fields) | {
        "kappa": KAPPA,
        "mean": mean,
        "mean_interval": jnp.stack([mean - 0.1, mean + 0.1], axis=1),
        "kappa_star": jnp.float32(star),
        "risk_at_kappa_star": mean[1],
        "resampled": jnp.tile(mean[None], (5, 1)),
    }
    return jr.DirectionalRisk(**fields)


RISING = (0.1, 0.2, 0.3, 0.8)
LOW = (0.1, 0.1, 0.12, 0.2)


def test_curves_kappa_star_and_the_level_are_there():
    plot = risk_curves_plot({"PGD": result(RISING), "noise": result(LOW)})
    root = ET.fromstring(plot.svg)
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "κ*" in texts
    assert "PGD: 3.00" in texts  # half way between 2 and 4
    assert "noise: never" in texts
    assert "kappa at a mean risk of 0.25" in texts
    assert "PGD from 0.100 at kappa 0 to 0.800 at kappa 9.00" in plot.alt
    assert "reaching 0.25 at kappa 3.00" in plot.alt
    assert "κ* = 2.00" in plot.caption


def test_the_level_may_be_another():
    plot = risk_curves_plot({"noise": result(LOW)}, level=0.11, name="other")
    assert plot.name == "other"
    assert "noise: 3.00" in plot.svg


def test_many_curves_and_the_same_bytes_again():
    many = {f"attack {i}": result(np.array(RISING) * (1 - i / 20)) for i in range(9)}
    plot = risk_curves_plot(many)
    assert all(f"attack {i}: " in plot.svg for i in range(9))
    assert plot == risk_curves_plot(many)


@pytest.mark.parametrize(
    ("results", "match"),
    [
        ({}, "results must hold at least one"),
        ({"a": result(LOW), "b": result(LOW, 3.0)}, "results must be of inputs of one size"),
    ],
)
def test_misuse(results, match):
    with pytest.raises(ValueError, match=match):
        risk_curves_plot(results)
