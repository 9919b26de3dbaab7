"""Lines of sixteen runs can be told apart, with any eyes and in greyscale."""

from itertools import combinations

import numpy as np

from widgets.figures.palette import pen

# what eyes without one kind of cones see of linear RGB (Viénot, Brettel and Mollon 1999)
SEEN = {
    "all cones": np.eye(3),
    "no long": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
    "no middle": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]),
}
LEAST = 8  # of CIE76's distance; 2 is just seen


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour, under D65."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_two_of_sixteen_runs_differ_in_colour_or_in_dash_and_marker():
    for a, b in combinations(map(pen, range(16)), 2):
        nearest = min(np.linalg.norm(lab(a.colour, seen) - lab(b.colour, seen)) for seen in SEEN.values())
        assert nearest > LEAST or (a.dash != b.dash and a.marker != b.marker), (a, b, nearest)


def test_no_two_of_sixteen_runs_have_the_same_dash_and_marker():
    assert len({(pen(i).dash, pen(i).marker) for i in range(16)}) == 16
