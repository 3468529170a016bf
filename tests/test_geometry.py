"""Anchors on the sphere: arrays to check by hand, identities, then statistics of seeded draws."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tgr_local.search import geometry
from tgr_local.search.geometry import InjectionMaps

X, Y, Z = np.eye(3)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_units(n: int, d: int, seed: int = 0) -> NDArray[np.float64]:
    return geometry.unit(rng(seed).standard_normal((n, d)))


def test_unit_of_hand_checked_vectors():
    np.testing.assert_allclose(geometry.unit(np.array([3.0, 4.0])), [0.6, 0.8])
    rows = geometry.unit(np.array([[3.0, 4.0], [0.0, -2.0]], dtype=np.float32))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.0, -1.0]], atol=1e-7)


@pytest.mark.parametrize("bad", [0.0, np.inf, np.nan])
def test_unit_refuses_what_has_no_direction(bad: float):
    with pytest.raises(ValueError, match="norm 0, inf or nan"):
        geometry.unit(np.full((2, 3), bad))


def test_state_anchor_is_the_unit_projection():
    h = np.array([3.0, 4.0, 0.0])
    np.testing.assert_allclose(geometry.state_anchor(h, None), [0.6, 0.8, 0.0])
    W = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(geometry.state_anchor(h, W), [0.8, 0.6])
    np.testing.assert_allclose(geometry.state_anchor(5 * h, W), geometry.state_anchor(h, W))


def test_projection_is_the_identity_or_keeps_the_mean_square_norm():
    assert geometry.projection(64, 64, seed=0) is None
    W = geometry.projection(256, 512, seed=0)
    assert W is not None and W.shape == (256, 512) and W.dtype == np.float32
    assert W.var() == pytest.approx(1 / 256, rel=0.02)
    assert np.sum((W @ random_units(50, 512).T) ** 2, axis=0).mean() == pytest.approx(1, rel=0.05)
    with pytest.raises(ValueError, match="d_z is 1"):
        geometry.projection(1, 64, seed=0)


def test_candidates_are_unit_and_stay_in_the_half_sphere_of_z():
    z = random_units(1, 40)[0]
    candidates = geometry.propose(z, 8, 0.7, rng())
    assert candidates.shape == (8, 40)
    np.testing.assert_allclose(np.linalg.norm(candidates, axis=1), 1)
    assert (candidates @ z > 0).all()


def test_a_candidate_is_z_plus_sigma_times_the_tangent_part_of_its_noise():
    z = np.array([1.0, 0.0, 0.0])
    eps = rng(3).standard_normal(3)
    expected = geometry.unit(np.array([1.0, 0.5 * eps[1], 0.5 * eps[2]]))
    np.testing.assert_allclose(geometry.propose(z, 1, 0.5, rng(3))[0], expected)


def test_sigma_zero_keeps_the_anchor():
    z = random_units(1, 40)[0]
    np.testing.assert_allclose(geometry.propose(z, 3, 0.0, rng()), [z, z, z])


@pytest.mark.parametrize(("d_z", "cosine"), [(192, 0.82), (4096, 0.30)])
def test_expected_cosine_of_a_candidate(d_z: int, cosine: float):
    z = random_units(1, d_z)[0]
    mean = (geometry.propose(z, 200, 0.05, rng()) @ z).mean()
    assert mean == pytest.approx(1 / np.sqrt(1 + 0.05**2 * (d_z - 1)), abs=0.005)
    assert mean == pytest.approx(cosine, abs=0.01)


def test_vectors_are_b_times_a_times_the_anchor():
    maps = InjectionMaps.draw(n_layer=3, d_h=20, d_z=12, rank=4, seed=5)
    anchors = random_units(2, 12)
    vectors = maps.vectors(anchors)
    assert vectors.shape == (2, 3, 20) and vectors.dtype == np.float32
    assert vectors.flags["C_CONTIGUOUS"]
    for n in range(2):
        for layer in range(3):
            expected = maps.B[layer] @ (maps.A[layer] @ anchors[n])
            np.testing.assert_allclose(vectors[n, layer], expected, atol=1e-6)


def test_vectors_are_linear_in_the_anchor_and_of_the_rank_of_the_maps():
    maps = InjectionMaps.draw(n_layer=2, d_h=20, d_z=12, rank=3, seed=0)
    anchors = random_units(12, 12)
    vectors = maps.vectors(anchors)
    np.testing.assert_allclose(maps.vectors(2 * anchors), 2 * vectors, atol=1e-6)
    np.testing.assert_allclose(
        maps.vectors(anchors[:1] - anchors[1:2]), vectors[:1] - vectors[1:2], atol=1e-6
    )
    assert [int(np.linalg.matrix_rank(vectors[:, layer])) for layer in range(2)] == [3, 3]


@pytest.mark.parametrize("rank", [1, 8])
@pytest.mark.parametrize(("d_h", "d_z"), [(64, 64), (96, 24)])
def test_mean_square_norm_of_an_injection_is_one(d_h: int, d_z: int, rank: int):
    maps = InjectionMaps.draw(n_layer=4000, d_h=d_h, d_z=d_z, rank=rank, seed=1)
    squares = np.sum(maps.vectors(random_units(1, d_z))[0] ** 2, axis=1)
    variance = 2 / rank + 2 / d_h + 4 / (rank * d_h)
    assert squares.mean() == pytest.approx(1, abs=4 * np.sqrt(variance / 4000))
    assert squares.var() == pytest.approx(variance, rel=0.25)


def test_injection_scale():
    norms = np.array([10.0, 40.0])
    np.testing.assert_allclose(geometry.injection_scale(norms, 0.1, "residual"), [1.0, 4.0])
    np.testing.assert_allclose(geometry.injection_scale(norms, 0.1, "absolute"), [1.0, 1.0])
    with pytest.raises(ValueError, match="layer 1 is nan"):
        geometry.injection_scale(np.array([10.0, np.nan]), 0.1, "residual")


def test_cosines_of_hand_checked_rows():
    rows = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    np.testing.assert_allclose(geometry.pairwise_cosines(rows), [0.0, -1.0, 0.0], atol=1e-15)
    assert geometry.apcs(rows) == pytest.approx(-1 / 3)
    assert geometry.min_pairwise_cosine(rows) == pytest.approx(-1)
    assert geometry.step_similarity(rows[0], rows[2]) == pytest.approx(-1)
    assert geometry.apcs(rows[:1]) == geometry.min_pairwise_cosine(rows[:1]) == 1.0


def test_effective_dimension_of_hand_checked_clouds():
    square = np.array([[1.0, 1.0, 5.0], [1.0, -1.0, 5.0], [-1.0, 1.0, 5.0], [-1.0, -1.0, 5.0]])
    assert geometry.effective_dimension(square) == pytest.approx(2)
    assert geometry.effective_dimension(np.outer([1.0, 2.0, 5.0], X)) == pytest.approx(1)
    simplex = np.eye(6)  # centred, it spans 5 equal directions
    assert geometry.effective_dimension(simplex) == pytest.approx(5)
    assert geometry.effective_dimension(7 * simplex + 3) == pytest.approx(5)
    uneven = square * [np.sqrt(3), 1.0, 1.0]  # p = (3/4, 1/4)
    assert geometry.effective_dimension(uneven) == pytest.approx(4 / 3**0.75)


def test_effective_dimension_without_spread_is_one():
    assert geometry.effective_dimension(np.tile(random_units(1, 9), (5, 1))) == 1.0
    assert geometry.effective_dimension(random_units(1, 9)) == 1.0


def test_angle():
    assert geometry.angle(X, 3 * Y) == pytest.approx(np.pi / 2)
    assert geometry.angle(X, X) == 0.0
    assert geometry.angle(X, -X) == pytest.approx(np.pi)
    tiny = np.array([1.0, 1e-10, 0.0])  # arccos would say 0
    assert geometry.angle(X, tiny) == pytest.approx(1e-10)


def test_the_log_map_leads_to_its_point():
    x, y = random_units(2, 30)
    v = geometry.log_map(x, y)
    arc = np.linalg.norm(v)
    assert x @ v == pytest.approx(0, abs=1e-12)
    assert arc == pytest.approx(geometry.angle(x, y))
    np.testing.assert_allclose(np.cos(arc) * x + np.sin(arc) / arc * v, y)
    np.testing.assert_allclose(geometry.log_map(X, Y), np.pi / 2 * Y, atol=1e-15)


def test_parallel_transport_is_an_isometry_between_tangent_spaces():
    x, y, v, w = random_units(4, 30)
    v, w = v - (x @ v) * x, w - (x @ w) * x
    moved_v, moved_w = (geometry.parallel_transport(x, y, t) for t in (v, w))
    assert y @ moved_v == pytest.approx(0, abs=1e-12)
    assert moved_v @ moved_w == pytest.approx(v @ w)
    np.testing.assert_allclose(geometry.parallel_transport(y, x, moved_v), v)
    arriving = geometry.parallel_transport(x, y, geometry.log_map(x, y))
    np.testing.assert_allclose(arriving, -geometry.log_map(y, x))


def test_transport_around_an_octant_turns_by_its_area():
    v = Y
    for here, there in ((X, Y), (Y, Z), (Z, X)):
        v = geometry.parallel_transport(here, there, v)
    np.testing.assert_allclose(v, Z, atol=1e-15)  # turned by π/2, the octant's area


def test_degenerate_points():
    np.testing.assert_array_equal(geometry.log_map(X, X), 0)
    np.testing.assert_array_equal(geometry.parallel_transport(X, X, Y), Y)
    assert geometry.geodesic_curvature(X, X, Y) == 0.0
    assert geometry.geodesic_curvature(X, Y, Y) == 0.0
    with pytest.raises(ValueError, match="antipodes"):
        geometry.log_map(X, -X)
    with pytest.raises(ValueError, match="antipodes"):
        geometry.parallel_transport(X, -X, Y)


def test_a_great_circle_has_no_curvature():
    a, b = random_units(2, 30)
    b = geometry.unit(b - (a @ b) * a)
    points = [np.cos(t) * a + np.sin(t) * b for t in (0.0, 0.3, 1.1)]
    assert geometry.geodesic_curvature(*points) == pytest.approx(0, abs=1e-12)


def test_curvature_of_known_triangles():
    # Around the octant: a right-angled turn at Y, after and before arcs of π/2.
    assert geometry.geodesic_curvature(X, Y, Z) == pytest.approx(1)
    # There and back: half a turn over an arc of 0.4.
    there = np.array([np.cos(0.4), np.sin(0.4), 0.0])
    assert geometry.geodesic_curvature(X, there, X) == pytest.approx(np.pi / 0.4)


def test_seeds_repeat_and_change():
    def draws(seed: int) -> list[NDArray[np.floating]]:
        W = geometry.projection(8, 16, seed)
        assert W is not None
        maps = InjectionMaps.draw(2, 16, 8, 4, seed)
        return [W, maps.A, maps.B, geometry.propose(X, 4, 0.1, rng(seed))]

    for one, again, other in zip(draws(1), draws(1), draws(2), strict=True):
        np.testing.assert_array_equal(one, again)
        assert (one != other).all()


def test_one_seed_gives_unrelated_projection_and_maps():
    W = geometry.projection(8, 16, seed=0)
    maps = InjectionMaps.draw(16, 16, 8, 1, seed=0)
    assert W is not None
    assert abs(np.corrcoef(W.ravel(), maps.A.ravel())[0, 1]) < 0.3
