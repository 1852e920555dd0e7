//! What other ways to draft would have brought at the anchors that a drafter's chain visits.
//!
//! Counterfactual numbers: a tree that accepts more goes on from other anchors. They cost one pass of the drafter instead
//! of one decoding a budget, and tell a drafter whose second choices are good from one without any.

use std::ops::ControlFlow;

use burn::tensor::Tensor;
use draftsman_contract::{AcceptanceStats, TreeRule, chain, top_k_streak};
use draftsman_data::LoopRule;
use draftsman_decode::{DecodeError, DflashProposer, GenerateOptions, Proposer};
use draftsman_models::Target;
use serde::Serialize;

use crate::replay::teacher_forced;
use crate::walked::room;
use crate::{EvalError, EvalPrompt, TargetAnswer};

/// Accepted drafts, mean over the passes of a chain outside loops. The bonus token is not counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatIf {
    /// Which statistic the numbers are.
    pub statistic: &'static str,
    /// Passes judged.
    pub cycles: u64,
    /// Of the chain itself: the walked acceptance_length − 1. Absent without passes, as all below.
    pub chain_accepted_drafts: Option<f64>,
    /// Of other drafts, by number of nodes and candidates.
    pub budgets: Vec<WhatIfBudget>,
}

/// The numbers of one budget.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatIfBudget {
    /// Nodes of the tree, and candidates of a slot.
    pub budget: usize,
    /// Of the best-first tree with so many nodes (`ddtree8` for 8).
    pub ddtree_accepted_drafts: Option<f64>,
    /// Leading slots that hold the target's choice among so many candidates: no tree of so many nodes accepts more.
    pub top_k_streak: Option<f64>,
    /// Share of the blocks whose 1st, 2nd, ... slot holds the target's choice among so many candidates, whatever came
    /// before it (the oracle). Absent where no block had that slot.
    pub oracle_share_at_slot: Vec<Option<f64>>,
}

/// Drafts the chain and remembers the candidates behind it.
struct Remembering<'a, 'b> {
    drafter: &'a mut DflashProposer<'b>,
    width: usize,
    temperature: f32,
    /// Of every block since [`Proposer::begin`], slot by slot.
    candidates: Vec<Vec<Vec<(u32, f32)>>>,
}

impl Proposer for Remembering<'_, '_> {
    fn name(&self) -> String {
        self.drafter.name()
    }

    fn taps(&self) -> &[usize] {
        self.drafter.taps()
    }

    fn block_size(&self) -> usize {
        self.drafter.block_size()
    }

    fn begin(&mut self) {
        self.candidates.clear();
        self.drafter.begin();
    }

    fn observe(&mut self, features: Option<Tensor<2>>, ids: &[u32]) -> Result<(), DecodeError> {
        self.drafter.observe(features, ids)
    }

    fn propose(&mut self, ids: &[u32], max_drafts: usize) -> Result<Vec<u32>, DecodeError> {
        let slots = self.drafter.candidates(ids, max_drafts, self.width, self.temperature)?;
        let first = slots.iter().filter_map(|slot| slot.first()).map(|(id, _)| *id).collect();
        self.candidates.push(slots);
        Ok(first)
    }
}

/// Walks the chain of `drafter` over the target's own answers, and judges at every anchor what each of these trees, and
/// as many candidates a slot as it has nodes, would have given. The trees share one draft temperature. Answers that cannot be walked are left out: [`crate::replay_walk`] tells why.
pub fn what_if(
    target: &dyn Target,
    drafter: &mut DflashProposer<'_>,
    answers: &[(EvalPrompt, TargetAnswer)],
    options: &GenerateOptions,
    loop_rule: &LoopRule,
    trees: &[TreeRule],
    rows_per_pass: usize,
) -> Result<WhatIf, EvalError> {
    let taps = drafter.taps().to_vec();
    let width = trees.iter().map(|rule| rule.budget).max().unwrap_or(1).max(1);
    let temperature = trees.first().map_or(1.0, |rule| rule.temperature);
    let mut sums = Sums { chain: AcceptanceStats::new(), by_budget: vec![Default::default(); trees.len()] };
    let mut remembering = Remembering { drafter, width, temperature, candidates: Vec::new() };
    teacher_forced(target, &taps, answers, options, rows_per_pass, &mut |answered, known| {
        let Ok(cycles) = known.and_then(|known| known.walk(&mut remembering, answered)) else {
            return ControlFlow::Continue(());
        };
        let ids = [&answered.prompt.ids[..], &answered.answer.output_ids].concat();
        let loop_start = loop_rule.loop_start(&answered.answer.output_ids);
        // A block that had no room for a draft asked for none.
        let drafted = cycles.iter().map(|cycle| cycle.block.len() > 1);
        let mut candidates = remembering.candidates.drain(..);
        for (cycle, drafted) in cycles.iter().zip(drafted) {
            let slots = if drafted { candidates.next().unwrap_or_default() } else { Vec::new() };
            let room = room(cycle.start, ids.len(), answered.prompt.ids.len(), loop_start);
            if room > 0 {
                sums.add(&slots, &ids[cycle.start + 1..], room, trees);
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(sums.report(trees))
}

struct Sums {
    chain: AcceptanceStats,
    /// Tree, and top-k streak with the slots' hits.
    by_budget: Vec<(AcceptanceStats, AcceptanceStats)>,
}

impl Sums {
    /// One block with the target's own continuation, of which `room` tokens count.
    fn add(&mut self, slots: &[Vec<(u32, f32)>], truth: &[u32], room: usize, trees: &[TreeRule]) {
        // Accepted drafts and bonus are cut where the answer or its loop-free part ends, as in the walk.
        let counted = |accepted: usize| (accepted + 1).min(room).saturating_sub(1);
        let drafts: Vec<u32> = slots.iter().filter_map(|slot| slot.first()).map(|(id, _)| *id).collect();
        let valid = truth.len();
        self.chain.record_cycle(counted(chain(&drafts, truth, valid)));
        for (rule, (tree, streak)) in trees.iter().zip(&mut self.by_budget) {
            let narrow: Vec<Vec<(u32, f32)>> =
                slots.iter().map(|slot| slot.iter().take(rule.budget).copied().collect()).collect();
            tree.record_cycle(counted(rule.build(&narrow).accepted(truth)));
            streak.record_cycle(counted(top_k_streak(&narrow, truth, valid)));
            let holds = |(slot, token): (&Vec<(u32, f32)>, &u32)| Some(slot.iter().any(|(id, _)| id == token));
            streak.record_slots(narrow.iter().zip(truth).take(room).map(holds));
        }
    }

    fn report(&self, trees: &[TreeRule]) -> WhatIf {
        let budgets = trees.iter().zip(&self.by_budget).map(|(rule, (tree, streak))| WhatIfBudget {
            budget: rule.budget,
            ddtree_accepted_drafts: tree.micro(),
            top_k_streak: streak.micro(),
            oracle_share_at_slot: streak.slot_hit_rates(),
        });
        WhatIf {
            statistic: "at the anchors that the chain visits outside loops (counterfactual; bonus token not counted)",
            cycles: self.chain.cycles,
            chain_accepted_drafts: self.chain.micro(),
            budgets: budgets.collect(),
        }
    }
}
