//! The numbers as curves and bars.

use std::fmt::Write as _;

use super::charts::{Axes, Curve, Point, bars, chart};
use super::{Page, TrainingPoint};
use crate::report::{ProposerReport, WalkedReport};

/// Points of a training curve; a longer one is thinned.
const MOST_TRAINING_POINTS: usize = 300;

impl Page<'_> {
    pub(super) fn growth(&self, html: &mut String) {
        let curve = |name: &str, of: fn(&TrainingPoint) -> Option<f64>| {
            let points: Vec<Point> = self
                .training
                .iter()
                .filter_map(|point| of(point).map(|value| (point.step, value)))
                .map(|(step, value)| Point::new(step as f64, value, format!("{value:.2} after {step} updates")))
                .collect();
            Curve { name: name.to_owned(), points: thinned(points) }
        };
        let parts = [
            (
                curve("random anchors", |point| point.chain_accepted_drafts),
                "Accepted drafts of a chain on held-out texts, mean over random anchors (another statistic than the \
                 table&#39;s), by completed updates.",
                "accepted drafts",
            ),
            (
                curve("walked", |point| point.walk_acceptance_length),
                "acceptance_length outside loops, walked over the target&#39;s own greedy answers to held-out prompts \
                 of the run, by completed updates.",
                "acceptance_length",
            ),
        ];
        let mut headed = false;
        for (curve, note, label) in parts.into_iter().filter(|(curve, ..)| curve.points.len() > 1) {
            html.push_str(if headed { "" } else { "<h2>Growth in training</h2>\n" });
            headed = true;
            let axes = Axes { x: "completed updates", y: label, doublings: false };
            let _ = writeln!(html, "<p class=\"note\">{note}</p>\n{}", chart(&[curve], &axes));
        }
    }

    /// Acceptance by slot: reached, and given the draft before.
    pub(super) fn slots(&self, html: &mut String) {
        let shares = |of: fn(&WalkedReport) -> &[f64]| {
            self.curves(|line| {
                let at_slot = of(&line.outside_loops).iter().enumerate();
                let point = |(i, &share): (usize, &f64)| {
                    Point::new((i + 1) as f64, share, format!("slot {}: {:.1} %", i + 1, 100.0 * share))
                };
                at_slot.map(point).collect()
            })
        };
        let reached = shares(|walked| &walked.accepted_share_at_slot);
        if reached.is_empty() {
            return;
        }
        html.push_str("<h2>How far drafts are accepted</h2>\n<p class=\"note\">Share of cycles that accept the 1st, 2nd, … draft.</p>\n");
        html.push_str(&chart(&reached, &Axes { x: "slot", y: "share of cycles", doublings: false }));
        let conditional = shares(|walked| &walked.conditional_accepted_share_at_slot);
        if !conditional.is_empty() {
            html.push_str(
                "<p class=\"note\">Given the draft before: of the cycles that accept it, the share that accept this \
                 one, too. A draft that was not made, or was cut off with the answer, counts as refused.</p>\n",
            );
            let y = "share of cycles that accept the draft before";
            html.push_str(&chart(&conditional, &Axes { x: "slot", y, doublings: false }));
        }
    }

    pub(super) fn histograms(&self, html: &mut String) {
        let drafting: Vec<&ProposerReport> = self.all().filter(|line| line.block_size > 1).collect();
        if drafting.is_empty() {
            return;
        }
        // As many bars for everybody, so that they can be compared at a glance.
        let counts = |line: &ProposerReport| line.outside_loops.cycles_by_accepted_drafts.clone();
        let most = drafting.iter().map(|line| counts(line).len()).max().unwrap_or(0);
        html.push_str("<h2>Cycles by accepted drafts</h2>\n<div class=\"row\">");
        for line in drafting {
            let mut counts = counts(line);
            counts.resize(most, 0);
            html.push_str(&bars(&line.name, &counts));
        }
        html.push_str("</div>\n");
    }

    pub(super) fn positions(&self, html: &mut String) {
        if !self.all().any(|line| line.by_position.len() > 1) {
            return;
        }
        let curves = self.curves(|line| {
            let point = |band: &crate::PositionBand| {
                let length = band.acceptance_length_micro;
                let title = format!("{}–{}: {length:.2} over {} cycles", band.from, band.to - 1, band.cycles);
                Point::new((band.from + band.to) as f64 / 2.0, length, title)
            };
            line.by_position.iter().map(point).collect()
        });
        html.push_str(
            "<h2>Acceptance by position</h2>\n<p class=\"note\">acceptance_length outside loops by where the anchor \
             stands in prompt and answer, at the middle of each band of positions. Bands with few cycles jump; a \
             point&#39;s tooltip tells its cycles.</p>\n",
        );
        html.push_str(&chart(&curves, &Axes { x: "position, tokens", y: "acceptance_length", doublings: true }));
    }

    /// A curve for every proposer that has points.
    fn curves(&self, points: impl Fn(&ProposerReport) -> Vec<Point>) -> Vec<Curve> {
        let curves = self.all().map(|line| Curve { name: line.name.clone(), points: points(line) });
        curves.filter(|curve| !curve.points.is_empty()).collect()
    }
}

/// Every n-th point, and the last.
fn thinned(points: Vec<Point>) -> Vec<Point> {
    let (count, every) = (points.len(), points.len().div_ceil(MOST_TRAINING_POINTS).max(1));
    let kept = points.into_iter().enumerate().filter(|(i, _)| i % every == 0 || i + 1 == count);
    kept.map(|(_, point)| point).collect()
}
