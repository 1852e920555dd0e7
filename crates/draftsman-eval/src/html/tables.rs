//! The numbers as tables.

use std::fmt::Write as _;

use draftsman_contract::Interval;

use super::{Page, escape, label, number};
use crate::report::{CycleSpeed, GroupReport, ProposerReport, SpeedReport};
use crate::{FailedPrompt, WhatIf};

/// Rows of the table by suite and category: a file may name a category for every prompt.
const MOST_GROUPS: usize = 150;

/// Prompts without an answer that are listed.
const MOST_FAILED: usize = 50;

/// Characters shown of what went wrong with a prompt.
const PROBLEM: usize = 300;

impl Page<'_> {
    pub(super) fn acceptance_table(&self, html: &mut String) {
        let loops = self.all().any(|line| line.inside_loops.cycles > 0);
        begin(html, "Acceptance");
        html.push_str("<thead><tr><th>drafter<th>acceptance_length<th>95&nbsp;%<th>macro<th>all tokens");
        html.push_str(if loops { "<th>inside loops" } else { "" });
        html.push_str("<th>cycles<th>lossless</thead><tbody>\n");
        for line in self.with_plain() {
            let outside = &line.outside_loops;
            let lossless = line.lossless.as_ref().map_or("–".to_owned(), |lossless| {
                format!("{:?} ({}/{})", lossless.verdict, lossless.identical_answers, lossless.answers)
            });
            let _ = write!(
                html,
                "<tr><th scope=\"row\">{}<td>{}<td>{}<td>{}<td>{}",
                escape(&line.name),
                number(outside.acceptance_length_micro, 3),
                outside.acceptance_length_micro_interval_95.as_ref().map_or("–".to_owned(), interval),
                number(outside.acceptance_length_macro, 3),
                number(line.all_tokens.acceptance_length_micro, 3),
            );
            if loops {
                let _ = write!(html, "<td>{}", number(line.inside_loops.acceptance_length_micro, 3));
            }
            let _ = writeln!(html, "<td>{}<td>{lossless}", outside.cycles);
        }
        end(html);
    }

    pub(super) fn speed_table(&self, html: &mut String) {
        let lines: Vec<(&ProposerReport, SpeedReport)> =
            self.with_plain().filter_map(|line| Some((line, line.speed?))).collect();
        if lines.is_empty() {
            return;
        }
        html.push_str(
            "<h2>Speed</h2>\n<p class=\"note\">Decoding after the first token, all lines in the same run. TPOT is the \
             time of an output token. Where a device works behind the program&#39;s back (a GPU), only the verify pass \
             and the whole cycle are to be trusted.</p>\n",
        );
        let whole = |cycle: &CycleSpeed| cycle.draft_ms + cycle.verify_ms + cycle.other_ms;
        let longest = lines.iter().filter_map(|(_, speed)| speed.cycle.as_ref().map(whole)).fold(0.0, f64::max);
        begin(html, "Speed");
        html.push_str(
            "<thead><tr><th rowspan=\"2\">drafter<th colspan=\"3\" class=\"over\">outside loops\
             <th colspan=\"6\" class=\"over\">mean cycle, over all tokens (times in ms)\
             <tr><th>tokens/s<th>TPOT ms<th>ratio to plain<th>tokens<th><i class=\"key k0\"></i>draft\
             <th><i class=\"key k1\"></i>verify<th><i class=\"key k2\"></i>other<th>whole<th></thead><tbody>\n",
        );
        for (line, speed) in &lines {
            let _ = write!(
                html,
                "<tr><th scope=\"row\">{}<td>{}<td>{}<td>{}<td>{}",
                escape(&line.name),
                number(speed.decode_outside_loops.tokens_per_s, 1),
                number(speed.tpot_ms_outside_loops, 2),
                number(line.decode_speedup_outside_loops, 2),
                number(line.all_tokens.acceptance_length_micro, 2),
            );
            match &speed.cycle {
                None => html.push_str("<td>–<td>–<td>–<td>–<td>\n"),
                Some(cycle) => {
                    let parts = [cycle.draft_ms, cycle.verify_ms, cycle.other_ms];
                    for ms in parts.into_iter().chain([whole(cycle)]) {
                        let _ = write!(html, "<td>{ms:.2}");
                    }
                    html.push_str("<td class=\"bar\" aria-hidden=\"true\"><div>");
                    for (index, ms) in parts.into_iter().enumerate() {
                        let _ = write!(
                            html,
                            "<i class=\"k{index}\" style=\"width:{:.1}%\"></i>",
                            100.0 * ms / longest.max(1e-9)
                        );
                    }
                    html.push_str("</div>\n");
                }
            }
        }
        end(html);
    }

    /// Rows are suites and categories, columns the proposers.
    pub(super) fn groups(&self, html: &mut String) {
        let Some(first) = self.all().next().filter(|line| line.by_group.len() > 1) else { return };
        html.push_str(
            "<h2>Acceptance by suite and category</h2>\n<p class=\"note\">acceptance_length outside loops, with the \
             95&nbsp;% interval over answers.</p>\n",
        );
        begin(html, "Acceptance by suite and category");
        html.push_str("<thead><tr><th>suite, category<th>answers");
        for line in self.all() {
            let _ = write!(html, "<th class=\"who\">{}", escape(&line.name));
        }
        html.push_str("</thead><tbody>\n");
        for group in first.by_group.iter().take(MOST_GROUPS) {
            let same = |other: &&GroupReport| (&other.suite, &other.category) == (&group.suite, &group.category);
            let answers = first.per_prompt.iter().filter(|prompt| {
                prompt.suite == group.suite && (group.category.is_none() || prompt.category == group.category)
            });
            let (class, name) = match &group.category {
                Some(category) => (" class=\"part\"", category.as_str()),
                None if group.suite.is_empty() => ("", "(no name)"),
                None => ("", group.suite.as_str()),
            };
            let _ = write!(html, "<tr{class}><th scope=\"row\">{}<td>{}", label(name), answers.count());
            for line in self.all() {
                let of_line = line.by_group.iter().find(same);
                let Some((length, group)) = of_line.and_then(|group| Some((group.acceptance_length_micro?, group)))
                else {
                    html.push_str("<td>–<small></small>");
                    continue;
                };
                let interval = group.acceptance_length_micro_interval_95.as_ref().map(interval).unwrap_or_default();
                let _ = write!(html, "<td>{length:.2} <small>{interval}</small>");
            }
            html.push('\n');
        }
        end(html);
        more(html, first.by_group.len(), MOST_GROUPS, "suites and categories");
    }

    pub(super) fn what_if(&self, html: &mut String) {
        let judged: Vec<(&ProposerReport, &WhatIf)> =
            self.all().filter_map(|line| Some((line, line.what_if.as_ref()?))).collect();
        if judged.is_empty() {
            return;
        }
        html.push_str("<h2>What other drafts would have brought</h2>\n");
        for (line, what_if) in judged {
            let _ = writeln!(
                html,
                "<p class=\"note\"><b>{}</b>: accepted drafts, {}, over {} cycles; the chain itself has {}. ddtree: the best-first tree of so \
                 many nodes; top-k streak: leading slots that hold the target&#39;s choice among so many candidates, \
                 which no tree of so many nodes exceeds; oracle 1, 2, …: how often that slot holds it, whatever came before.</p>",
                escape(&line.name),
                escape(what_if.statistic),
                what_if.cycles,
                number(what_if.chain_accepted_drafts, 3)
            );
            begin(html, &format!("What other drafts of {} would have brought", line.name));
            let slots = what_if.budgets.iter().map(|budget| budget.oracle_share_at_slot.len()).max().unwrap_or(0);
            html.push_str("<thead><tr><th>budget<th>ddtree<th>top-k streak");
            for slot in 1..=slots {
                let _ = write!(html, "<th>oracle {slot}");
            }
            html.push_str("</thead><tbody>\n");
            for budget in &what_if.budgets {
                let _ = write!(
                    html,
                    "<tr><th scope=\"row\">{}<td>{}<td>{}",
                    budget.budget,
                    number(budget.ddtree_accepted_drafts, 3),
                    number(budget.top_k_streak, 3)
                );
                for slot in 0..slots {
                    let share = budget.oracle_share_at_slot.get(slot).copied().flatten();
                    let _ = write!(html, "<td>{}", number(share, 2));
                }
                html.push('\n');
            }
            end(html);
        }
    }

    pub(super) fn failed(&self, html: &mut String) {
        let failed = &self.report.failed;
        if failed.is_empty() {
            return;
        }
        html.push_str("<h2 id=\"failed\">Not evaluated</h2>\n<p class=\"note\">No number counts these.</p>\n<ul>");
        for FailedPrompt { suite, id, problem } in failed.iter().take(MOST_FAILED) {
            let suite = if suite.is_empty() { String::new() } else { format!("{} · ", label(suite)) };
            let problem: String = problem.chars().take(PROBLEM).collect();
            let _ = writeln!(html, "<li><b>{suite}{}</b>: {}", label(id), escape(&problem));
        }
        html.push_str("</ul>\n");
        more(html, failed.len(), MOST_FAILED, "prompts");
    }
}

/// A table that scrolls sideways where the window is narrow, by keyboard too.
fn begin(html: &mut String, label: &str) {
    let label = escape(label);
    let _ = write!(html, "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"{label}\"><table>");
}

fn end(html: &mut String) {
    html.push_str("</tbody></table></div>\n");
}

fn more(html: &mut String, count: usize, shown: usize, what: &str) {
    if count > shown {
        let _ = writeln!(html, "<p class=\"note\">And {} more {what}.</p>", count - shown);
    }
}

fn interval(interval: &Interval) -> String {
    format!("{:.2}–{:.2}", interval.low, interval.high)
}
