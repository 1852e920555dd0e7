//! Live evaluation and its report.

use std::ops::ControlFlow;

use burn::tensor::Tensor;
use draftsman_data::LoopRule;
use draftsman_decode::{DecodeError, DflashProposer, Finish, GenerateOptions, NgramProposer, Proposer};
use draftsman_eval::{EvalPrompt, TargetAnswer, Verdict, replay_walk, summarise, summarise_replay, walk_live};

use crate::tiny;

/// Knows an answer and spoils every `wrong_every`-th token of it.
pub(crate) struct Hinted {
    answer: Vec<u32>,
    wrong_every: usize,
}

impl Hinted {
    pub(crate) fn new(answer: &[u32], wrong_every: usize) -> Self {
        Self { answer: answer.to_vec(), wrong_every }
    }
}

impl Proposer for Hinted {
    fn name(&self) -> String {
        format!("hinted {}", self.wrong_every)
    }
    fn taps(&self) -> &[usize] {
        &[]
    }
    fn block_size(&self) -> usize {
        8
    }
    fn begin(&mut self) {}
    fn observe(&mut self, features: Option<Tensor<2>>, _: &[u32]) -> Result<(), DecodeError> {
        assert!(features.is_none());
        Ok(())
    }
    fn propose(&mut self, ids: &[u32], max_drafts: usize) -> Result<Vec<u32>, DecodeError> {
        let known = self.answer.iter().enumerate().skip(ids.len()).take(max_drafts.min(7));
        Ok(known
            .map(|(at, &token)| if (at + 1) % self.wrong_every == 0 { (token + 1) % tiny::VOCAB } else { token })
            .collect())
    }
}

#[test]
fn live_and_replayed_reports_agree_and_are_lossless() {
    let target = tiny::target(5);
    let drafter = tiny::drafter(target.as_ref(), 6, 5);
    let prompts: Vec<EvalPrompt> =
        (0..4).map(|i| EvalPrompt { id: format!("p{i}"), ids: tiny::prompt(i, 5 + i as usize) }).collect();
    let options = GenerateOptions::greedy(30, &[3]);
    let names = [("ngram".to_owned(), 6), ("drafter".to_owned(), 6)];
    let mut proposers: Vec<Box<dyn Proposer + '_>> = vec![
        Box::new(NgramProposer::new(6)),
        Box::new(DflashProposer::new("drafter", &drafter, target.as_ref(), None).unwrap()),
    ];
    let mut seen = Vec::new();
    let runs = walk_live(target.as_ref(), &mut proposers, &prompts, &options, &mut |run| {
        seen.push(run.id.clone());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, ["p0", "p1", "p2", "p3"]);
    // Tiny models repeat themselves soon: a loop is one repeated pair.
    let rule = LoopRule { ngram: 2, window: 2, repeated: 2 };
    let outside = |ids: &[u32]| rule.loop_start(ids).unwrap_or(ids.len());
    let live = summarise(&runs, &names, &options, &rule);
    let answers: Vec<TargetAnswer> = runs
        .iter()
        .map(|run| TargetAnswer { output_ids: run.plain.output_ids().to_vec(), finish: run.plain.finish })
        .collect();
    let walks = replay_walk(target.as_ref(), &mut proposers, &prompts, &answers, &options, 40).unwrap();
    for rows_per_pass in [1, 75, 1000] {
        let other = replay_walk(target.as_ref(), &mut proposers, &prompts, &answers, &options, rows_per_pass).unwrap();
        assert_eq!(other, walks, "{rows_per_pass} rows a pass");
    }
    let replayed = summarise_replay(&walks, &prompts, &answers, &names, &options, &rule);

    assert_eq!(live.prompts, 4);
    assert!(live.looping_answers > 0 && answers.iter().any(|a| outside(&a.output_ids) > 4), "{answers:?}");
    let plain = live.plain.as_ref().unwrap();
    assert_eq!(plain.all_tokens.acceptance_length_micro, Some(1.0));
    let decoded: usize = runs.iter().map(|r| r.plain.decoded_tokens()).sum();
    assert_eq!(plain.all_tokens.decoded_tokens, decoded as u64);
    assert_eq!(
        plain.outside_loops.decoded_tokens,
        answers.iter().map(|a| outside(&a.output_ids).saturating_sub(1) as u64).sum::<u64>()
    );
    for (line, again) in live.proposers.iter().zip(&replayed.proposers) {
        let lossless = line.lossless.as_ref().unwrap();
        assert_eq!((lossless.verdict, lossless.identical_answers), (Verdict::Identical, 4), "{}", line.name);
        assert_eq!((&line.all_tokens, &line.outside_loops), (&again.all_tokens, &again.outside_loops), "{}", line.name);
        assert_eq!(line.all_tokens.decoded_tokens, decoded as u64);
        let speed = line.speed.unwrap();
        assert_eq!(speed.decode_all_tokens.tokens, decoded as u64);
        assert!(speed.decode_outside_loops.seconds < speed.decode_all_tokens.seconds);
        let ratio = line.decode_speedup_all_tokens.unwrap();
        let expected = speed.decode_all_tokens.tokens_per_s.unwrap()
            / plain.speed.unwrap().decode_all_tokens.tokens_per_s.unwrap();
        assert_eq!(ratio, expected);
        assert!(again.speed.is_none() && again.lossless.is_none());
    }
    // As JSON, with numbers under names that carry their unit.
    let json = serde_json::to_value(&live).unwrap();
    assert!(json["proposers"][0]["outside_loops"]["acceptance_length_micro"].as_f64().unwrap() >= 1.0);
    assert!(json["statistic"].as_str().unwrap().starts_with("walked anchors"));
}

#[test]
fn acceptance_is_absent_where_no_cycle_ran() {
    let target = tiny::target(5);
    let prompts = [EvalPrompt { id: "p".into(), ids: tiny::prompt(1, 5) }];
    let options = GenerateOptions::greedy(1, &[]);
    let mut proposers: Vec<Box<dyn Proposer>> = vec![Box::new(NgramProposer::new(6))];
    let runs =
        walk_live(target.as_ref(), &mut proposers, &prompts, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(runs[0].plain.finish, Finish::Length);
    let report = summarise(&runs, &[("ngram".into(), 6)], &options, &LoopRule::default());
    let json = serde_json::to_value(&report).unwrap();
    let line = &json["proposers"][0];
    for key in ["acceptance_length_micro", "acceptance_length_macro", "acceptance_length_micro_interval_95"] {
        assert!(line["all_tokens"][key].is_null() && line["all_tokens"].get(key).is_some(), "{key}: {line}");
    }
    assert!(line["decode_speedup_all_tokens"].is_null());
    assert_eq!(line["lossless"]["verdict"], "identical");
}

#[test]
fn an_evaluation_can_be_ended_between_prompts() {
    let target = tiny::target(5);
    let prompts: Vec<EvalPrompt> = (0..3).map(|i| EvalPrompt { id: i.to_string(), ids: tiny::prompt(i, 5) }).collect();
    let runs =
        walk_live(
            target.as_ref(),
            &mut [],
            &prompts,
            &GenerateOptions::greedy(3, &[]),
            &mut |_| ControlFlow::Break(()),
        );
    assert_eq!(runs.unwrap().len(), 1);
}
