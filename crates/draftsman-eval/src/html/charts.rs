//! Charts as inline SVG, coloured by the page's style.

use std::fmt::Write as _;

use super::escape;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 46.0;
const BOTTOM: f64 = 36.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = 130.0;

/// A named curve.
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    pub(super) points: &'a [(f64, f64)],
}

/// Curves over a common grid; y starts at 0.
pub(super) fn lines(curves: &[Line<'_>], x_label: &str, y_label: &str) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points);
    let x_low = points().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let x_high = points().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
    let step = grid_step(points().map(|p| p.1).fold(0.0, f64::max));
    let y_high = (points().map(|p| p.1).fold(0.0, f64::max) / step).ceil().max(1.0) * step;
    let x = |v: f64| LEFT + (v - x_low) / (x_high - x_low).max(1e-9) * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| HEIGHT - BOTTOM - v / y_high * (HEIGHT - BOTTOM - TOP);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escape(y_label));
    let mut level = 0.0;
    while level <= y_high + step / 2.0 {
        let at = y(level);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            trimmed(level)
        );
        level += step;
    }
    for tick in ticks(curves) {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(tick),
            HEIGHT - BOTTOM + 16.0,
            trimmed(tick)
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        WIDTH - RIGHT,
        HEIGHT - 4.0,
        escape(x_label)
    );
    let mut label_y: Vec<f64> = Vec::new();
    for (index, curve) in curves.iter().enumerate() {
        let path: Vec<String> = curve.points.iter().map(|&(px, py)| format!("{:.1},{:.1}", x(px), y(py))).collect();
        let _ = write!(svg, "<polyline class=\"c{}\" points=\"{}\"/>", index % 5, path.join(" "));
        for &(px, py) in curve.points {
            let _ = write!(svg, "<circle class=\"c{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\"/>", index % 5, x(px), y(py));
        }
        // Labels stand one under the other, from the top: ends of curves lie too close together.
        let at = TOP + 10.0 + 16.0 * label_y.len() as f64;
        label_y.push(at);
        let _ = write!(
            svg,
            "<text class=\"name c{}\" x=\"{:.1}\" y=\"{at:.1}\">{}</text>",
            index % 5,
            WIDTH - RIGHT + 10.0,
            escape(&short(curve.name, 20))
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Counts as bars under a heading.
pub(super) fn bars(name: &str, counts: &[u64]) -> String {
    let highest = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let slot = 220.0 / counts.len().max(1) as f64;
    let mut svg = format!("<figure><svg viewBox=\"0 0 240 130\" role=\"img\" aria-label=\"{0}\">", escape(name));
    for (accepted, &count) in counts.iter().enumerate() {
        let height = count as f64 / highest * 90.0;
        let x = 10.0 + slot * accepted as f64;
        let _ = write!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{count} passes</title></rect>\
             <text x=\"{:.1}\" y=\"122\" text-anchor=\"middle\">{accepted}</text>",
            104.0 - height,
            (slot - 2.0).max(1.0),
            x + slot / 2.0 - 1.0
        );
    }
    let _ = write!(svg, "</svg><figcaption>{}</figcaption></figure>", escape(&short(name, 28)));
    svg
}

/// A step of 1, 2 or 5 times a power of ten that gives a handful of grid lines.
fn grid_step(highest: f64) -> f64 {
    let rough = (highest / 4.0).max(1e-6);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&step| step >= rough).unwrap_or(power)
}

/// At most eight of the x values.
fn ticks(curves: &[Line<'_>]) -> Vec<f64> {
    let mut all: Vec<f64> = curves.iter().flat_map(|curve| curve.points.iter().map(|p| p.0)).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let every = all.len().div_ceil(8).max(1);
    all.into_iter().step_by(every).collect()
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The last `most` characters: folder names differ at their end.
fn short(name: &str, most: usize) -> String {
    let count = name.chars().count();
    if count <= most {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(count - most + 1).collect::<String>())
    }
}
