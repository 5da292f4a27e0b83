"""The robustness card: each section is what its measure says, and an interruption loses nothing."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxrobust as jr
from jaxrobust.report import CardConfig, RobustnessCard, ThetaConfig, read_report
from jaxrobust.report.card import agreement, saved, sections, units
from jaxrobust.report.formats import estimate
from jaxrobust.report.views import agreement_view

KEY = jax.random.key(7)
X = np.asarray(jax.random.normal(jax.random.key(0), (30, 3)), np.float32)
W = np.array([[1.0, -1.0, 0.0], [0.5, 0.5, -2.0], [-1.0, 0.3, 1.0]], np.float32)
Y = np.argmax(X @ W, axis=1)
Y[:3] = (Y[:3] + 1) % 3  # three are misclassified
SECTIONS = {"preflight", "theta", "flip", "distance", "directional", "clever", "agreement"}
CONFIG = CardConfig(
    theta=ThetaConfig(
        scales=(0.0, 0.5, 1.0), probabilities=(1.0,), num_replicates=60, num_resamples=0
    ),
    num_examples=20,
    num_flips=200,
    attacks=("pgd",),
    kappas=(0.0, 5.0),
    num_noise=16,
    num_batches=10,
    batch_size=8,
    num_resamples=50,
)


def linear(w, x):
    return x @ w


def make(**arguments):
    return jr.report.robustness_card(linear, W, KEY, X, Y, **{"config": CONFIG, **arguments})


def without_times(data):
    data = json.loads(json.dumps(data))
    del data["created"], data["cost"]["seconds"]
    return data


@pytest.fixture(scope="module")
def card():
    return make()


def column(values):
    return np.array([np.nan if value is None else value for value in values], float)


def test_all_sections_are_there_and_strict_json(card, tmp_path):
    assert set(card.data["sections"]) == SECTIONS
    json.dumps(card.data, allow_nan=False)
    card.write(tmp_path / "out")
    written = read_report(tmp_path / "out")
    assert set(written["files"]) >= {"report.html", "plots/agreement-scatter.svg"}
    again = RobustnessCard(written)
    assert again.summary == card.summary
    assert str(card).count("\n") == len(card.summary) - 1


def test_flips_are_those_of_the_measure_for_the_same_key(card):
    section = card.section("flip")
    index = section["examples"]["index"]
    assert len(index) == 20
    found = jr.flip_probability(
        linear, W, KEY, X[index],
        perturbation=jr.perturbations.gaussian(0.25, feature_scale=X.std(axis=0)),
        num_samples=200,
    )  # fmt: skip
    np.testing.assert_allclose(column(section["examples"]["probability"]), found.probability)
    np.testing.assert_allclose(section["mean"]["interval"], found.mean_interval, rtol=1e-6)


def test_noise_that_is_rounded_away_is_said():
    x = np.round(4 * X)
    scale = np.array([0.8, 1.2, 0.0], np.float32)
    config = dataclasses.replace(CONFIG, sections=("flip",), sigma=0.5)
    whole = jr.report.robustness_card(
        linear, W, KEY, x, Y, config=config, feature_scale=scale, integer=np.ones(3, bool)
    )
    noise = jr.perturbations.gaussian(0.5, feature_scale=scale, integer=np.ones(3, bool))
    same = [np.asarray(jr.perturb(noise, KEY, x, replicate=j) == x).all(axis=1) for j in range(100)]
    unmoved = whole.section("flip")["unmoved"]
    assert abs(np.mean(same) - unmoved) < 4 * np.sqrt(unmoved * (1 - unmoved) / np.size(same))
    assert 0.4 < unmoved < 0.6
    assert any("rounding takes the noise away" in sentence for sentence in whole.summary)
    partly = jr.report.robustness_card(
        linear, W, KEY, x, Y, config=config, feature_scale=scale, integer=np.array([1, 0, 1], bool)
    )
    assert partly.section("flip")["unmoved"] == 0
    silent = jr.report.robustness_card(
        linear, W, KEY, x, Y, config=dataclasses.replace(config, sigma=0.0)
    )
    assert silent.section("flip")["unmoved"] == 1
    assert any("there is no noise" in sentence for sentence in silent.summary)
    assert not any("rounding" in sentence for sentence in partly.summary)


def test_distances_are_the_closed_form_in_units(card):
    section = card.section("distance")
    index = section["examples"]["index"]
    label = Y[index]
    logits, scaled = X[index] @ W, W * X.std(axis=0)[:, None]
    exact = np.full(len(index), np.inf)
    for k in range(3):
        slope = np.linalg.norm(scaled[:, [k]] - scaled[:, label], axis=0)
        gap = logits[np.arange(len(index)), label] - logits[:, k]
        exact = np.where(
            k == label, exact, np.minimum(exact, np.maximum(gap, 0) / slope.clip(1e-9))
        )
    np.testing.assert_allclose(column(section["examples"]["distance"]), exact, rtol=0.03)
    assert section["num_already_wrong"] == (exact == 0).sum()
    found = np.sort(column(section["examples"]["distance"])[exact > 0])
    for name, q in (("median", 0.5), ("quantile_90", 0.9)):
        number = section[name]
        assert (
            number["value"] == found[int(np.ceil(q * len(found))) - 1] == section[f"{name}_found"]
        )
        ends = np.asarray(jr.intervals.quantile(found, q, 0.95))
        assert number["interval"] == estimate(0, ends)["interval"]


@pytest.mark.parametrize(("gate", "few"), [(0.8, False), (-0.8, True)])
def test_distances_that_were_not_found_count_as_infinite(gate, few):
    # The last feature has no gradient; above the gate it makes class 0 unassailable within bounds.
    def gated(params, x):
        return x[:, :2] @ params[:2] + jnp.where(x[:, 2:] > gate, jnp.array([1e3, 0.0, 0.0]), 0.0)

    y = np.argmax(gated(W, X), axis=1)
    config = dataclasses.replace(CONFIG, sections=("distance",), bounds=(-5.0, 5.0))
    card = jr.report.robustness_card(gated, W, KEY, X, y, config=config)
    section = card.section("distance")
    out_of_reach = X[section["examples"]["index"], 2] > gate
    far = column(section["examples"]["distance"])
    np.testing.assert_array_equal(np.isnan(far), out_of_reach)
    assert section["num_not_found"] == out_of_reach.sum() > 0
    found = np.sort(far[~out_of_reach])
    assert section["median_found"] == found[(len(found) + 1) // 2 - 1]
    assert section["median"]["value"] == (None if few else found[9])
    assert section["quantile_90"]["value"] is None
    said = " ".join(card.summary)
    if few:
        assert f"for {len(found)} of 20 correctly classified inputs: fewer than half" in said
    else:
        assert "Half of the 20 correctly classified inputs looked at" in said


def test_examples_without_a_label_are_in_no_number():
    def gaps(w, x):
        return jnp.where(x[:, :1] > 1, jnp.nan, x @ w)

    bad = X[:, 0] > 1
    config = dataclasses.replace(CONFIG, num_examples=30, sections=("flip", "distance"))
    card = jr.report.robustness_card(gaps, W, KEY, X, np.argmax(X @ W, axis=1), config=config)
    assert 0 < bad.sum() < 15
    assert f"labels {30 - bad.sum()} of 30 examples correctly" in card.summary[0]
    flip, distance = card.section("flip"), card.section("distance")
    np.testing.assert_array_equal(np.array(flip["examples"]["predicted"]) == -1, bad)
    np.testing.assert_array_equal(np.isnan(column(flip["examples"]["probability"])), bad)
    assert distance["num_invalid"] == bad.sum()
    assert (distance["num_already_wrong"], distance["num_not_found"]) == (0, 0)
    np.testing.assert_array_equal(np.isnan(column(distance["examples"]["distance"])), bad)
    said = " ".join(card.summary)
    assert f"Half of the {30 - bad.sum()} correctly classified inputs" in said
    assert "There is no mean flip probability: some examples have no valid draw." in said
    assert "–" not in said
    zero = np.array(flip["examples"]["num_invalid"]) == 0
    never = int((zero & (column(flip["examples"]["probability"]) == 0)).sum())
    assert f"{never} of 30 predictions did not flip" in said


def test_one_example_has_no_scale_and_nothing_moves():
    card = jr.report.robustness_card(linear, W, KEY, X[5:6], Y[5:6], config=CONFIG)
    assert "no feature may move" in card.section("clever")["left_out"]
    assert card.section("flip")["unmoved"] == 1


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_inputs_in_half_precision(card, dtype):
    half = jr.report.robustness_card(linear, W, KEY, jnp.asarray(X, dtype), Y, config=CONFIG)
    for section in ("distance", "clever"):
        found, fine = half.section(section)["median"], card.section(section)["median"]
        assert found["value"] == pytest.approx(fine["value"], rel=0.1)


def test_clever_lies_at_or_below_the_distance_of_a_linear_model(card):
    section = card.section("clever")
    examples = card.section("flip")["examples"]
    correct = np.array(examples["predicted"]) == np.array(examples["label"])
    score = column(section["examples"]["score"])[correct]
    far = column(card.section("distance")["examples"]["distance"])[correct]
    np.testing.assert_allclose(score, np.minimum(far, section["config"]["radius"]), rtol=0.03)
    assert section["num_refuted"] == 0
    assert section["num_comparable"] == sum(correct)


def test_directional_means_are_over_the_correct_examples(card):
    section = card.section("directional")
    (row,) = section["attacks"]
    assert section["num_correct"] == np.isfinite(column(row["examples"])).sum()
    assert section["kappa_star"] == pytest.approx(3**0.25)
    at = np.argmin(np.abs(np.array(row["kappa"]) - section["kappa_star"]))
    assert row["risk_at_kappa_star"]["value"] == pytest.approx(np.nanmean(column(row["examples"])))
    assert row["mean"][at] == row["risk_at_kappa_star"]["value"]
    assert row["low"][at] <= row["mean"][at] <= row["high"][at]


def test_agreement_is_scipys_rank_correlation(card):
    section = card.section("agreement")
    assert section["names"] == ["certainty", "flip", "directional", "clever", "distance"]
    a, b = (column(section["columns"][name]) for name in ("certainty", "distance"))
    number = section["spearman"][0][4]
    assert number["value"] == pytest.approx(stats.spearmanr(a, b).statistic)
    assert number["interval"][0] <= number["value"] <= number["interval"][1]
    assert section["num_examples"] == card.section("directional")["num_correct"]


def test_rank_correlations_of_constants_ties_infinities_and_gaps():
    rng = np.random.default_rng(0)
    a = rng.normal(size=50)
    columns = {
        "a": a,
        "same": np.exp(a),
        "constant": np.ones(50),
        "infinite": np.where(a > 1, np.inf, a),
        "gaps": np.where(a > 0, np.nan, -a),
    }
    found = agreement.rank_correlations(columns, rng, 100, 0.9)
    assert found[0][1].rho == pytest.approx(1)
    assert np.isnan(found[0][2].rho)
    assert 0.95 < found[0][3].rho < 1
    assert found[0][4].rho == pytest.approx(-1)
    assert found[0][4].num_pairs == (a <= 0).sum()
    few = agreement.rank_correlations({"a": a[:3], "b": a[:3]}, rng, 100, 0.9)
    assert np.isnan(few[0][1].rho)


def test_the_interval_of_a_rank_correlation_covers():
    rng = np.random.default_rng(1)
    truth = 6 / np.pi * np.arcsin(0.5 / 2)  # Spearman's, of a bivariate normal with rho = .5
    covered = []
    for _ in range(200):
        z = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=100).T
        found = agreement.rank_correlations({"a": z[0], "b": z[1]}, rng, 200, 0.9)[0][1]
        covered.append(found.interval[0] < truth < found.interval[1])
    assert np.mean(covered) > 0.9 - 3 * np.sqrt(0.09 / 200)


def test_an_interrupted_card_goes_on_where_it_stopped(card, tmp_path, monkeypatch):
    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sections.measures, "clever_score", killed)
        with pytest.raises(KeyboardInterrupt):
            make(folder=tmp_path)
    assert not (tmp_path / "report.json").exists()
    with pytest.raises(ValueError, match="cannot resume"):
        make(folder=tmp_path, resume=True, config=jr.report.preset("quick"))
    with monkeypatch.context() as patch:
        patch.setattr(sections.theta, "theta_report", pytest.fail)
        patch.setattr(sections.measures, "flip_probability", pytest.fail)
        patch.setattr(sections.measures, "directional_risk", pytest.fail)
        resumed = make(folder=tmp_path, resume=True)
    assert without_times(resumed.data) == without_times(card.data)
    assert not (tmp_path / saved.FOLDER).exists()
    assert without_times(read_report(tmp_path)) | {"files": []} == without_times(card.data)


def test_without_resuming_finished_sections_are_neither_used_nor_lost(tmp_path):
    store = saved.SavedSections(tmp_path, "one", resume=False)
    assert store.get("theta", lambda: {"made": 1}) == {"made": 1}
    assert saved.SavedSections(tmp_path, "one", resume=True).get("theta", pytest.fail) == {
        "made": 1
    }
    for fingerprint in ("one", "two"):
        with pytest.raises(
            FileExistsError, match=r"sections \(theta\).*--resume.*remove .*to start"
        ):
            saved.SavedSections(tmp_path, fingerprint, resume=False)
    assert saved.SavedSections(tmp_path, "one", resume=True).has("theta")
    (tmp_path / saved.FOLDER / "theta.json").unlink()
    fresh = saved.SavedSections(tmp_path, "two", resume=False)  # nothing was finished
    assert fresh.get("theta", lambda: {"made": 2}) == {"made": 2}


def test_the_fingerprint_sees_everything():
    base = saved.fingerprint(CONFIG, X, W)
    assert saved.fingerprint(CONFIG, X.copy(), W.copy()) == base
    for other in (
        (jr.report.preset("quick"), X, W),
        (CONFIG, X + 1e-6, W),
        (CONFIG, X, {"w": W}),
        (CONFIG, X.reshape(3, 30), W),
        (CONFIG, X.astype(np.float64), W),
    ):
        assert saved.fingerprint(*other) != base


SMALL = jr.report.preset(
    "quick", scales=(0.0, 1.0), num_replicates=60, num_resamples=10,
    sections=("theta", "flip", "directional", "agreement"),
)  # fmt: skip


def test_of_a_regression_only_theta_is_measured():
    card = jr.report.robustness_card(
        lambda w, x: x @ w[:, 0], W, KEY, X, X @ W[:, 0] + 1, config=SMALL
    )
    assert "regression" in card.section("flip")["left_out"]
    assert "left_out" not in card.section("theta")
    assert len(card.summary) >= 2
    assert "Not measured: flip probability, the agreement of the measures, as a" in " ".join(
        card.summary
    )


def test_features_that_must_not_move_leave_balls_out():
    where = np.array([True, False, True])
    card = make(where=where, config=SMALL)
    assert "1 of 3 features must not move" in card.section("directional")["left_out"]
    assert card.section("agreement")["names"] == ["certainty", "flip"]
    said = " ".join(card.summary)
    assert "Not measured: directional risk, as 1 of 3 features must not move" in said
    assert "The rank correlation is that of" in said  # highest or lowest of one pair says nothing


def test_constant_features_are_dropped_from_distances():
    x = np.concatenate([X, np.full((30, 1), 5.0, np.float32)], axis=1)
    scale = np.append(X.std(axis=0), 0.0).astype(np.float32)
    scaled = units.in_units(
        lambda w, x: x[:, :3] @ w * x[:, 3:], W, jnp.asarray(x), scale, np.ones(4, bool),
        (-9.0, 9.0), False,
    )  # fmt: skip
    assert scaled.u.shape == (30, 3)
    np.testing.assert_allclose(scaled.apply_fn(scaled.params, scaled.u), 5 * X @ W, rtol=1e-5)
    np.testing.assert_allclose(scaled.bounds[1], 9 / X.std(axis=0), rtol=1e-6)


def test_black_boxes_and_probabilities():
    soft = jr.models.from_numpy(lambda x: np.asarray(jax.nn.softmax(np.asarray(x) @ W)))
    config = jr.report.preset(
        "quick", scales=(0.0, 1.0), num_replicates=60, num_resamples=10, outputs="probabilities",
        sections=("clever",), targets="all", num_batches=5, batch_size=4,
    )  # fmt: skip
    card = jr.report.robustness_card(soft, None, KEY, X, Y, config=config)
    assert "no gradient" in card.section("clever")["left_out"]
    assert [f["code"] for f in card.section("preflight")["findings"]] == ["no gradient"]
    gives = jr.report.robustness_card(
        lambda w, x: jax.nn.softmax(x @ w), W, KEY, X, Y, config=config
    )
    assert gives.section("preflight")["findings"] == []
    # Margins of log-probabilities are those of the logits: linear, so every gradient is the same.
    examples = gives.section("clever")["examples"]
    assert not any("PROBABILITIES" in flags for flags in examples["flags"])
    index = np.array(examples["index"])
    slopes = np.linalg.norm((W[:, :, None] - W[:, None, :]) * X.std(axis=0)[:, None, None], axis=0)
    logits = X[index] @ W
    label = logits.argmax(axis=1)
    with np.errstate(invalid="ignore"):
        exact = (logits.max(axis=1, keepdims=True) - logits) / slopes[label]
    exact = np.minimum(
        np.nanmin(np.where(np.arange(3) == label[:, None], np.nan, exact), axis=1), 1
    )
    np.testing.assert_allclose(column(examples["score"]), exact, rtol=0.02)
    assert len(gives.summary) >= 2


def test_images_are_shown_under_noise(tmp_path):
    x = np.clip(np.asarray(jax.random.uniform(KEY, (30, 6, 6)), np.float32), 0, 1)
    w = np.asarray(jax.random.normal(KEY, (36, 3)), np.float32)
    config = jr.report.preset(
        "quick", sections=("theta",), scales=(0.0, 1.0), num_replicates=60, num_resamples=10
    )
    card = jr.report.robustness_card(
        lambda w, x: x.reshape(len(x), -1) @ w, w, KEY, x, Y, config=config
    )
    pictures = card.section("theta")["pictures"]
    assert pictures["shape"] == [6, 6]
    page = card.write(tmp_path / "out").read_text()
    assert "theta-pictures" in page
    assert "data:image/png;base64" in page


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_examples": 0}, ValueError, "num_examples"),
        ({"sigma": -1.0}, ValueError, "sigma"),
        ({"norm": "l3"}, ValueError, "norm"),
        ({"eps": 0.0}, ValueError, "eps"),
        ({"radius": float("nan")}, ValueError, "radius"),
        ({"attacks": "pgd"}, ValueError, "attacks"),
        ({"attacks": ("cw",)}, ValueError, "attacks"),
        ({"sections": ()}, ValueError, "sections"),
        ({"kappas": (-1.0,)}, ValueError, "kappas"),
        ({"theta": None}, TypeError, "theta"),
        ({"colour": 1}, TypeError, "colour"),
        ({"alpha": 0.0}, ValueError, "alpha"),
    ],
)
def test_bad_settings_name_themselves(changes, error, message):
    with pytest.raises(error, match=message):
        jr.report.preset("quick", **changes)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"config": "fast"}, ValueError, "preset must be one of"),
        ({"y": Y[:5]}, ValueError, "y must have one label for each"),
        ({"y": np.eye(3, dtype=np.float32)[Y]}, ValueError, "y must be integer.*one-hot"),
        ({"y": Y.astype(np.float32)}, ValueError, "y must be integer class labels"),
        ({"y": Y + 3}, ValueError, "y must be labels from 0 to 2"),
        ({"key": 3}, TypeError, "key must be a typed PRNG key"),
        ({"x": X[:0]}, ValueError, "x must hold at least one"),
        ({"apply_fn": lambda w, x: np.asarray(x) @ w}, TypeError, "from_numpy"),
        ({"y": np.array(["a"] * 30)}, TypeError, "y must be integer class labels.*<U1"),
        ({"y": None}, TypeError, "y must be integer class labels.*None"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    given = {"apply_fn": linear, "params": W, "key": KEY, "x": X, "y": Y, **arguments}
    with pytest.raises(error, match=message):
        jr.report.robustness_card(**{"config": CONFIG, **given})


def test_the_plan_counts_what_the_card_reports(card):
    found = jr.report.plan(linear, W, X, Y, CONFIG)
    costs = found.sections
    assert sum(c.model_inputs for c in costs.values()) == card.data["cost"]["model_inputs"]
    assert sum(c.gradients for c in costs.values()) == card.data["cost"]["gradients"]
    assert costs["theta"].model_inputs == (3 * 60 + 1) * 30
    assert costs["clever"] == (20 * 81, 20 * 80 * 2)
    assert "model inputs" in str(found)
    assert set(jr.report.plan(lambda w, x: x @ w[:, 0], W, X, X[:, 0], CONFIG).sections) == {
        "theta"
    }


def test_a_correlation_without_an_interval_can_be_shown():
    rng = np.random.default_rng(0)
    rare = np.zeros(30)
    rare[0] = 1.0  # constant in a third of the resamples
    found = agreement.rank_correlations(
        {"flip": rare, "clever": rng.normal(size=30)}, rng, 100, 0.9
    )
    number = estimate(found[0][1].rho, found[0][1].interval, "no interval")
    assert number["value"] is not None
    assert number["interval"] == [None, None]
    one = estimate(1.0, (1.0, 1.0))
    data = {
        "config": {"num_resamples": 100, "confidence": 0.9},
        "num_examples": 30,
        "names": ["flip", "clever"],
        "columns": {"flip": rare.tolist(), "clever": rng.normal(size=30).tolist()},
        "spearman": [[one, number], [number, one]],
    }
    assert "Do the measures agree?" in agreement_view.html(data, agreement_view.draw(data))
    assert "(no interval)" in agreement_view.summary(data)[0]
