//! The page: its tokens are the answer, hostile text stays text, nothing is asked of the network.

use draftsman_data::LoopRule;
use draftsman_decode::{GenerateOptions, NgramProposer, Proposer};
use draftsman_eval::html::{Origin, Page, SampleAnswer, ShownToken, TrainingPoint, escape, shown_tokens};
use draftsman_eval::{EvalPrompt, Settings, summarise, walk_live};

use crate::tiny;
use crate::walk::Hinted;

#[test]
fn markup_and_control_bytes_are_made_harmless() {
    for (text, expected) in [
        ("<script>alert('x')</script>", "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"),
        ("a & \"b\"", "a &amp; &quot;b&quot;"),
        ("\x1b[31mred\r\x07", "\u{fffd}[31mred\u{fffd}\u{fffd}"),
        ("\u{202e}abc", "\u{fffd}abc"),
        ("tab\tline\n", "tab\tline\n"),
    ] {
        assert_eq!(escape(text), expected);
    }
}

#[test]
fn a_page_shows_the_answer_and_asks_for_nothing() {
    let target = tiny::target(5);
    let prompts: Vec<EvalPrompt> =
        (0..2).map(|i| EvalPrompt::new(i as usize, format!("<b>{i}</b>"), tiny::prompt(i, 6))).collect();
    let options = GenerateOptions::greedy(24, &[]);
    let plain = draftsman_decode::generate(target.as_ref(), None, &prompts[0].ids, &options).unwrap();
    let mut proposers: Vec<Box<dyn Proposer + '_>> =
        vec![Box::new(NgramProposer::new(6)), Box::new(Hinted::new(&plain.ids, 4))];
    let walk = walk_live(target.as_ref(), &mut proposers, &prompts, &options, &mut ()).unwrap();
    let settings = Settings { options, thinking: None, loop_rule: LoopRule::default() };
    let names = [("ngram".to_owned(), 6), ("</style><img src=x>".to_owned(), 8)];
    let report = summarise(&walk, &names, &settings);
    let mut drafted = 0;
    for run in &walk.runs {
        for generation in &run.speculative {
            let shown =
                shown_tokens(&generation.ids, generation.prompt_len, &generation.cycles, &|id| format!("{id} "));
            let answer: String =
                shown.iter().filter(|t| t.origin != Origin::Rejected).map(|t| t.text.as_str()).collect();
            let expected: String = generation.output_ids().iter().map(|id| format!("{id} ")).collect();
            assert_eq!(answer, expected);
            drafted += shown.iter().filter(|t| matches!(t.origin, Origin::Draft(_))).count();
        }
    }
    assert!(drafted > 10, "{drafted} drafts shown");
    let samples = [SampleAnswer {
        id: "p".into(),
        prompt: "<script>".into(),
        proposer: "ngram".into(),
        tokens: vec![ShownToken { text: "</pre><script>".into(), origin: Origin::Draft(1) }],
    }];
    let training = [0, 10].map(|step| TrainingPoint { step, chain_accepted_drafts: step as f64 / 7.0 });
    let facts = [("a<b".to_owned(), "c>d".to_owned())];
    let html = Page { title: "T & U", report: &report, training: &training, samples: &samples, facts: &facts }.render();
    for forbidden in ["<script", "<img", "http:", "https:", "url(", "NaN"] {
        assert!(!html.contains(forbidden), "the page holds {forbidden:?}");
    }
    assert!(html.contains("T &amp; U") && html.contains("Growth in training") && html.len() < 100_000);
}
