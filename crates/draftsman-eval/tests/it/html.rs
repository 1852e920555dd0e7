//! The page: its tokens are the answer, hostile text stays text, nothing is asked of the network.

use std::collections::HashSet;

use draftsman_contract::TreeRule;
use draftsman_data::LoopRule;
use draftsman_decode::{Cycle, Finish, GenerateOptions, Generation, NgramProposer, Proposer};
use draftsman_eval::html::{
    DrawnTree, Origin, Page, SampleAnswer, ShownToken, TrainingPoint, TreeNode, escape, shown_tokens,
};
use draftsman_eval::{
    EvalPrompt, EvalReport, FailedPrompt, LiveWalk, Settings, WhatIf, WhatIfBudget, plain_report, summarise, walk_live,
};

use crate::branching::Branching;
use crate::tiny;
use crate::walk::Hinted;

const HOSTILE: &str = "</svg></pre></style><script>\"'&\u{202e}\u{1b}";

/// What no page may hold: a request, a script, markup of a text, a number that is none.
const FORBIDDEN: [&str; 9] =
    ["<script", "<img", "http:", "https:", "url(", "NaN", "\u{202e}", "\u{1b}", "</style><img"];

fn check_harmless(html: &str) {
    for forbidden in FORBIDDEN {
        assert!(!html.contains(forbidden), "the page holds {forbidden:?}");
    }
    assert_eq!(html.matches("</style>").count(), 1);
    for element in ["svg", "pre", "table", "details", "figure", "div", "g"] {
        let opened = html.matches(&format!("<{element} ")).count() + html.matches(&format!("<{element}>")).count();
        assert_eq!(opened, html.matches(&format!("</{element}>")).count(), "<{element}>");
    }
}

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

/// A walk with a lookup, a hinted chain and a tree, over two suites, and its lines' names.
fn walked() -> (LiveWalk, Vec<(String, usize)>, Settings) {
    let target = tiny::target(5);
    let prompts: Vec<EvalPrompt> = (0..2)
        .map(|i| {
            let prompt = EvalPrompt::new(i as usize, format!("<b>{i}</b>"), tiny::prompt(i, 6));
            EvalPrompt { suite: format!("<i>{i}</i>"), category: Some(HOSTILE.into()), ..prompt }
        })
        .collect();
    let options = GenerateOptions::greedy(24, &[]);
    let plain = draftsman_decode::generate(target.as_ref(), None, &prompts[0].ids, &options).unwrap();
    let vocab = target.spec().vocab_size;
    let mut proposers: Vec<Box<dyn Proposer + '_>> = vec![
        Box::new(NgramProposer::new(6)),
        Box::new(Hinted::new(&plain.ids, 4)),
        Box::new(Branching::new(&plain.ids, vocab, 5, &[], TreeRule::best_first(12))),
    ];
    let walk = walk_live(target.as_ref(), &mut proposers, &prompts, &options, &mut ()).unwrap();
    let names = [("ngram", 6), (HOSTILE, 8), ("tree", 13)].map(|(name, size)| (name.to_owned(), size)).to_vec();
    (
        walk,
        names,
        Settings {
            target: "t".into(),
            target_layers_sha256: None,
            options,
            thinking: None,
            loop_rule: LoopRule::default(),
        },
    )
}

fn page<'a>(report: &'a EvalReport) -> Page<'a> {
    Page { title: "T & U", report, training: &[], samples: &[], tree: None, facts: &[] }
}

#[test]
fn shown_tokens_without_refused_ones_are_the_answer() {
    let (walk, ..) = walked();
    let mut drafted = 0;
    for generation in walk.runs.iter().flat_map(|run| &run.speculative) {
        let shown = shown_tokens(&generation.ids, generation.prompt_len, &generation.cycles, &|id| format!("{id} "));
        let answer: String = shown.iter().filter(|t| t.origin != Origin::Rejected).map(|t| t.text.as_str()).collect();
        let expected: String = generation.output_ids().iter().map(|id| format!("{id} ")).collect();
        assert_eq!(answer, expected);
        drafted += shown.iter().filter(|t| matches!(t.origin, Origin::Draft(_))).count();
    }
    assert!(drafted > 10, "{drafted} drafts shown");
}

/// Everything a page can show has its heading, and nothing that is absent.
#[test]
fn sections_are_there_where_their_data_are() {
    let (walk, names, settings) = walked();
    let mut full = summarise(&walk, &names, &settings);
    full.proposers[1].what_if = Some(WhatIf {
        statistic: "at <anchors>",
        cycles: 9,
        chain_accepted_drafts: Some(1.25),
        budgets: vec![WhatIfBudget {
            budget: 4,
            ddtree_accepted_drafts: Some(1.875),
            top_k_streak: None,
            oracle_share_at_slot: vec![Some(0.53125), None],
        }],
    });
    full.failed.push(FailedPrompt { suite: "s".into(), id: "<p>".into(), problem: HOSTILE.into() });
    let tree = DrawnTree::choose("tree", walk.runs.iter().map(|r| (r.prompt.name(), &r.speculative[2])), &|id| {
        format!("{id}{HOSTILE}")
    });
    let token = |text: &str, origin| ShownToken { text: text.into(), origin };
    let samples = [SampleAnswer {
        suite: HOSTILE.into(),
        id: HOSTILE.into(),
        prompt: HOSTILE.into(),
        proposer: HOSTILE.into(),
        tokens: vec![token(HOSTILE, Origin::Draft(9)), token("\nno", Origin::Rejected), token("t", Origin::Target)],
    }];
    let training = [0, 10].map(|step| TrainingPoint {
        step,
        chain_accepted_drafts: Some(step as f64 / 7.0),
        walk_acceptance_length: Some(1.0 + step as f64 / 9.0),
    });
    let facts = [("a<b".to_owned(), "c>d".to_owned())];
    let all =
        Page { training: &training, samples: &samples, tree: tree.as_ref(), facts: &facts, ..page(&full) }.render();
    check_harmless(&all);
    assert!(all.contains("T &amp; U") && all.len() < 100_000, "{}", all.len());

    // One prompt of one suite, only the target: nothing to compare, to divide or to draw.
    let mut alone = walk.runs[..1].to_vec();
    alone[0].prompt.category = None;
    alone[0].speculative.clear();
    let mut bare = full.clone();
    bare.failed.clear();
    bare.plain = None;
    bare.proposers = vec![plain_report(&alone, &settings.loop_rule)];
    bare.proposers[0].speed = None;
    bare.proposers[0].by_position.truncate(1);
    let bare = page(&bare).render();
    check_harmless(&bare);
    for text in [
        "Growth in training",
        "random anchors",
        "walked over the target",
        "How far drafts are accepted",
        "Given the draft before",
        "Cycles by accepted drafts",
        "Acceptance by position",
        "Acceptance by suite and category",
        "What other drafts would have brought",
        "<td>1.875<td>–<td>0.53<td>–",
        "the chain itself has 1.250",
        "at &lt;anchors&gt;",
        "A draft tree",
        "Answers, token by token",
        "slot 7+",
        "⏎no",
        "Not evaluated",
        "<h2>Speed</h2>",
        "TPOT",
        "<dt>a&lt;b<dd>c&gt;d",
    ] {
        assert_eq!((all.contains(text), bare.contains(text)), (true, false), "{text}");
    }
}

#[test]
fn growth_shows_what_was_measured() {
    let (walk, names, settings) = walked();
    let report = summarise(&walk, &names, &settings);
    let point = |step, chain, walk| TrainingPoint { step, chain_accepted_drafts: chain, walk_acceptance_length: walk };
    for (training, heading, charts) in [
        (vec![], 0, 0),
        (vec![point(0, Some(0.0), None)], 0, 0),
        (vec![point(0, Some(0.0), None), point(5, Some(1.0), Some(2.0))], 1, 1),
        (vec![point(0, None, Some(1.0)), point(5, None, Some(2.0))], 1, 1),
        (vec![point(0, Some(0.5), Some(1.0)), point(5, Some(f64::NAN), Some(2.0))], 1, 2),
    ] {
        let with = Page { training: &training, ..page(&report) }.render();
        check_harmless(&with);
        let count = |html: &str, of: &str| html.matches(of).count();
        assert_eq!(count(&with, "<h2>Growth in training"), heading, "{training:?}");
        let without = count(&page(&report).render(), "class=\"chart\"");
        assert_eq!(count(&with, "class=\"chart\"") - without, charts, "{training:?}");
    }
}

/// Anchor 5 at position 2 of an answer 3 4 | 5 11 12 99, with drafts 10 (13), 11 (12, 14).
fn branched() -> (Cycle, Vec<u32>) {
    let cycle = Cycle {
        start: 2,
        block: vec![5, 10, 11, 12, 13, 14],
        parents: Some(vec![0, 0, 2, 1, 2]),
        accepted: 2,
        committed: 3,
    };
    (cycle, vec![3, 4, 5, 11, 12, 99])
}

fn generation(ids: &[u32], cycles: Vec<Cycle>) -> Generation {
    let (ids, finish) = (ids.to_vec(), Finish::Length);
    Generation { ids, prompt_len: 2, cycles, finish, gaps: vec![], prefill_s: 0.0, cycle_times: vec![] }
}

#[test]
fn a_tree_shows_what_was_drafted_and_taken() {
    let (cycle, ids) = branched();
    let tree = DrawnTree::of(&cycle, &ids, "who", "p", &|id| format!("t{id}")).unwrap();
    let node = |text: &str, parent, accepted| TreeNode { text: text.into(), parent, accepted };
    let expected = [
        node("t5", None, true),
        node("t10", Some(0), false),
        node("t11", Some(0), true),
        node("t12", Some(2), true),
        node("t13", Some(1), false),
        node("t14", Some(2), false),
    ];
    assert_eq!(tree.nodes, expected);
    assert_eq!((tree.bonus.as_deref(), tree.position, tree.left_out), (Some("t99"), 2, 0));
    // A chain is no tree; an answer that ends with the drafts has no bonus.
    assert_eq!(DrawnTree::of(&Cycle { parents: None, ..cycle.clone() }, &ids, "who", "p", &|_| String::new()), None);
    let ended = Cycle { committed: 2, ..cycle };
    assert_eq!(DrawnTree::of(&ended, &ids[..5], "who", "p", &|id| format!("t{id}")).unwrap().bonus, None);
}

#[test]
fn the_tree_that_branches_and_accepts_most_is_chosen() {
    let (branched, ids) = branched();
    // The same answer by first choices alone, with more accepted.
    let straight =
        Cycle { block: vec![5, 11, 10, 12, 99], parents: Some(vec![0, 0, 1, 3]), accepted: 3, ..branched.clone() };
    let refused = Cycle { block: vec![5, 20, 21], parents: Some(vec![0, 0]), accepted: 0, committed: 1, ..branched };
    let chain = Cycle { block: vec![5, 11], parents: None, accepted: 1, committed: 2, ..branched };
    let second = Cycle { block: vec![5, 20, 11], parents: Some(vec![0, 0]), accepted: 1, committed: 2, ..branched };
    let ended = Cycle { accepted: 5, ..branched.clone() };
    for (cycles, expected) in [
        (vec![&chain], None),
        (vec![&chain, &refused], Some(3)),
        (vec![&refused, &straight, &chain], Some(5)),
        (vec![&straight, &second], Some(3)),
        (vec![&second, &straight, &branched, &ended], Some(6)),
    ] {
        let answer = generation(&ids, cycles.into_iter().cloned().collect());
        let chosen = DrawnTree::choose("who", [("p".to_owned(), &answer)].into_iter(), &|id| id.to_string());
        assert_eq!(chosen.map(|tree| tree.nodes.len()), expected);
    }
    // Of equals the first.
    let answers = [generation(&ids, vec![branched.clone()]), generation(&ids, vec![branched])];
    let named = ["first", "second"].map(str::to_owned).into_iter().zip(&answers);
    assert_eq!(DrawnTree::choose("who", named, &|_| String::new()).unwrap().id, "first");
}

/// No two boxes of a picture lie on each other, and a box per node and bonus is there.
#[test]
fn boxes_of_a_tree_lie_apart() {
    let (walk, names, settings) = walked();
    let report = summarise(&walk, &names, &settings);
    let texts = ["", " ", "\n\t", "語語語語語語語語", HOSTILE, "an ordinary long text", "👩‍👩‍👧‍👧👩‍👩‍👧‍👧"];
    // A bush wider than what is drawn, whose accepted path is its last leaf.
    let rows = 120u32;
    let parents = (0..rows as usize - 1).map(|draft| draft / 3).collect::<Vec<_>>();
    let mut path = vec![rows as usize - 1];
    while let Some(&row) = path.last().filter(|row| **row > 0) {
        path.push(parents[row - 1]);
    }
    path.reverse();
    let ids: Vec<u32> = path.iter().map(|&row| row as u32).chain([500]).collect();
    let (accepted, committed) = (path.len() - 1, path.len());
    let bush = Cycle { start: 0, block: (0..rows).collect(), parents: Some(parents), accepted, committed };
    let (small, small_ids) = branched();
    let word = |id: u32| texts[id as usize % texts.len()].to_owned();
    for (cycle, ids) in [(&bush, &ids), (&small, &small_ids)] {
        let tree = DrawnTree::of(cycle, ids, "who", "p", &word).unwrap();
        assert_eq!(tree.nodes.len() + tree.left_out, cycle.block.len());
        assert_eq!(tree.nodes.iter().filter(|node| node.accepted).count(), cycle.accepted + 1);
        let html = Page { tree: Some(&tree), ..page(&report) }.render();
        check_harmless(&html);
        let picture = html.split("<svg class=\"tree\"").nth(1).unwrap().split("</svg>").next().unwrap();
        let places: Vec<&str> =
            picture.split("<rect ").skip(1).map(|rest| rest.split(" width").next().unwrap()).collect();
        assert_eq!(places.len(), tree.nodes.len() + 1);
        assert_eq!(places.iter().collect::<HashSet<_>>().len(), places.len(), "{places:?}");
        assert_eq!(picture.matches("<path ").count(), places.len() - 1);
    }
}

/// Under 1 MB, whatever comes: long answers, long tokens, a category for every prompt, many failures, a long training.
#[test]
fn a_page_stays_small() {
    let (walk, names, settings) = walked();
    let mut report = summarise(&walk, &names, &settings);
    for line in &mut report.proposers {
        let group = line.by_group[0].clone();
        line.by_group.extend((0..3000).map(|i| {
            let mut group = group.clone();
            group.category = Some(format!("{i}{}", HOSTILE.repeat(500)));
            group
        }));
    }
    report.failed = (0..2000)
        .map(|i| FailedPrompt {
            suite: "s".into(),
            id: format!("p{i}{}", HOSTILE.repeat(500)),
            problem: HOSTILE.repeat(100),
        })
        .collect();
    let training: Vec<TrainingPoint> = (0..20_000)
        .map(|step| TrainingPoint {
            step,
            chain_accepted_drafts: Some((step as f64).sqrt()),
            walk_acceptance_length: Some(1.0),
        })
        .collect();
    for text in ["word ", &HOSTILE.repeat(20)] {
        let token = |i: usize| ShownToken { text: text.to_owned(), origin: Origin::Draft(1 + i % 15) };
        let sample = SampleAnswer {
            suite: "s".into(),
            id: "p".into(),
            prompt: format!("FIRST{}LAST", HOSTILE.repeat(10_000)),
            proposer: "who".into(),
            tokens: (0..10_000).map(token).collect(),
        };
        let html = Page { training: &training, samples: &vec![sample; 4], ..page(&report) }.render();
        check_harmless(&html);
        assert!(html.len() < 1_000_000, "{} bytes", html.len());
        assert_eq!(html.matches(" of 10000 tokens").count(), 4);
        // Short tokens are cut by their number, long ones by their length.
        assert_eq!(html.matches("The first 600 of").count(), if text == "word " { 4 } else { 0 });
        assert!(html.contains("FIRST") && html.contains("LAST</pre>") && html.contains("characters left out"));
        assert!(html.contains("And 1950 more prompts"));
        // Both ends of the training.
        assert!(html.contains("after 0 updates") && html.contains("after 19999 updates"));
    }
}
