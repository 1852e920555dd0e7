//! Charts as inline SVG, coloured by the page's style.

use std::fmt::Write as _;

use super::escape;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 246.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;

/// Colours in the style; a later curve takes them again, dashed.
const COLOURS: usize = 5;

/// A named curve.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<Point>,
}

/// A point and what its tooltip says.
pub(super) struct Point {
    x: f64,
    y: f64,
    title: String,
}

impl Point {
    pub(super) fn new(x: f64, y: f64, title: String) -> Self {
        Self { x, y, title }
    }
}

/// What the axes show.
pub(super) struct Axes<'a> {
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// Whether x grows by doublings.
    pub(super) doublings: bool,
}

/// Curves over a common grid, named below it where they are several; y starts at 0.
pub(super) fn chart(curves: &[Curve], axes: &Axes<'_>) -> String {
    let scaled = |x: f64| if axes.doublings { x.max(1.0).log2() } else { x };
    let points = || curves.iter().flat_map(|curve| &curve.points).filter(|p| p.x.is_finite() && p.y.is_finite());
    let x_low = points().map(|p| scaled(p.x)).fold(f64::INFINITY, f64::min);
    let x_high = points().map(|p| scaled(p.x)).fold(f64::NEG_INFINITY, f64::max);
    let highest = points().map(|p| p.y).fold(0.0, f64::max);
    let step = grid_step(highest);
    let y_high = (highest / step).ceil().max(1.0) * step;
    let x = |v: f64| LEFT + (scaled(v) - x_low) / (x_high - x_low).max(1e-9) * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| HEIGHT - BOTTOM - v / y_high * (HEIGHT - BOTTOM - TOP);

    let label = escape(&format!("{} by {}: {}", axes.y, axes.x, spoken(curves)));
    let mut svg = format!(
        "<figure class=\"chart\"><div class=\"wide\" tabindex=\"0\">\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">"
    );
    for level in 0..=(y_high / step).round() as usize {
        let value = level as f64 * step;
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y(value) + 4.0,
            trimmed(value),
            at = y(value),
        );
    }
    let mut xs: Vec<f64> = points().map(|p| p.x).collect();
    xs.sort_by(f64::total_cmp);
    let mut free_from = f64::NEG_INFINITY;
    for tick in xs {
        let (at, text) = (x(tick), trimmed(tick));
        // Wide enough for the larger letters of a narrow window.
        let half = 5.5 * text.len() as f64;
        if at - half < free_from {
            continue;
        }
        free_from = at + half + 6.0;
        let _ =
            write!(svg, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>", HEIGHT - BOTTOM + 16.0);
    }
    let _ = write!(svg, "<text x=\"4\" y=\"15\">{}</text>", escape(axes.y));
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        WIDTH - RIGHT,
        HEIGHT - 6.0,
        escape(axes.x)
    );
    for (index, curve) in curves.iter().enumerate() {
        let class = class(index);
        let shown = || curve.points.iter().filter(|p| p.x.is_finite() && p.y.is_finite());
        let path: Vec<String> = shown().map(|p| format!("{:.1},{:.1}", x(p.x), y(p.y))).collect();
        let _ = write!(svg, "<polyline class=\"{class}\" points=\"{}\"/>", path.join(" "));
        for point in shown() {
            let _ = write!(
                svg,
                "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{}</title></circle>",
                x(point.x),
                y(point.y),
                escape(&point.title)
            );
        }
    }
    svg.push_str("</svg></div>");
    if curves.len() > 1 {
        svg.push_str("<figcaption>");
        for (index, curve) in curves.iter().enumerate() {
            let _ = write!(
                svg,
                "<span><svg class=\"swatch\" viewBox=\"0 0 24 8\" aria-hidden=\"true\">\
                 <polyline class=\"{}\" points=\"0,4 24,4\"/></svg>{}</span>",
                class(index),
                escape(&short(&curve.name, 60))
            );
        }
        svg.push_str("</figcaption>");
    }
    svg.push_str("</figure>\n");
    svg
}

/// Counts as bars under a heading.
pub(super) fn bars(name: &str, counts: &[u64]) -> String {
    let highest = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let slot = 220.0 / counts.len().max(1) as f64;
    let label_every = (18.0 / slot).ceil().max(1.0) as usize;
    let total: u64 = counts.iter().sum();
    let spoken: Vec<String> =
        counts.iter().enumerate().map(|(accepted, count)| format!("{accepted}: {count}")).collect();
    let mut svg = format!(
        "<figure><svg viewBox=\"0 0 240 130\" role=\"img\" aria-label=\"cycles by accepted drafts with {}: {}\">\
         <line class=\"grid\" x1=\"10\" x2=\"230\" y1=\"104.5\" y2=\"104.5\"/>",
        escape(name),
        spoken.join(", ")
    );
    for (accepted, &count) in counts.iter().enumerate() {
        let height = count as f64 / highest * 92.0;
        let x = 10.0 + slot * accepted as f64;
        let share = 100.0 * count as f64 / total.max(1) as f64;
        let _ = write!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\">\
             <title>{accepted} accepted: {count} cycles ({share:.1} %)</title></rect>",
            104.0 - height,
            (slot - 2.0).max(slot / 2.0),
        );
        if accepted % label_every == 0 {
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"120\" text-anchor=\"middle\">{accepted}</text>",
                x + slot / 2.0 - 1.0
            );
        }
    }
    let _ = write!(
        svg,
        "</svg><figcaption>{} <small>{total} cycles</small></figcaption></figure>",
        escape(&short(name, 60))
    );
    svg
}

fn class(index: usize) -> String {
    let dashed = if index / COLOURS % 2 == 1 { " dash" } else { "" };
    format!("c{}{dashed}", index % COLOURS)
}

/// The ends of every curve, for who cannot see it.
fn spoken(curves: &[Curve]) -> String {
    let ends = curves.iter().filter_map(|curve| {
        let (first, last) = (curve.points.first()?, curve.points.last()?);
        let name = short(&curve.name, 60);
        Some(format!(
            "{name} from {} at {} to {} at {}",
            trimmed(first.y),
            trimmed(first.x),
            trimmed(last.y),
            trimmed(last.x)
        ))
    });
    ends.collect::<Vec<_>>().join("; ")
}

/// A step of 1, 2 or 5 times a power of ten that gives a handful of grid lines.
fn grid_step(highest: f64) -> f64 {
    let rough = (highest / 4.0).max(1e-6);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&step| step >= rough).unwrap_or(power)
}

fn trimmed(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
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
