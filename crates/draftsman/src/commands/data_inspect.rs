//! `draftsman data inspect`: records as tokens, the supervised ones marked, and counts.

use std::fmt::Write as _;

use draftsman_data::{ChatEncoder, Document, EncodeOptions, load_dataset};
use serde_json::json;

use crate::Outcome;
use crate::args::DataInspectArgs;
use crate::model::open_text_if_there;
use crate::printer::Printer;

pub(crate) fn run(args: &DataInspectArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let text = open_text_if_there(&args.target, None)?;
    let spec = draftsman_models::read_target_spec(&args.target)?;
    let options = EncodeOptions {
        vocab_size: Some(spec.vocab_size),
        mask_token_id: args.mask_token_id,
        ..EncodeOptions::new(args.max_length.unwrap_or(spec.max_positions))
    };
    let dataset = load_dataset(&args.data, text.as_ref(), &options)?;
    for document in dataset.documents.iter().take(args.show) {
        printer.line(format!(
            "--- {}: {} tokens, {} supervised",
            document.id,
            document.ids.len(),
            document.supervised()
        ));
        printer.line(marked(document, text.as_ref()));
    }
    let tokens: usize = dataset.documents.iter().map(|d| d.ids.len()).sum();
    let supervised: usize = dataset.documents.iter().map(Document::supervised).sum();
    let longest = dataset.documents.iter().map(|d| d.ids.len()).max().unwrap_or(0);
    printer.line(format!(
        "{} documents, {tokens} tokens, {supervised} supervised ({:.0} %), longest {longest}; {} cut where a loop began ({} tokens)",
        dataset.documents.len(),
        100.0 * supervised as f64 / tokens.max(1) as f64,
        dataset.loops_cut,
        dataset.loop_tokens_cut
    ));
    printer.document(&json!({
        "documents": dataset.documents.len(),
        "tokens": tokens,
        "supervised_tokens": supervised,
        "longest": longest,
        "loops_cut": dataset.loops_cut,
        "loop_tokens_cut": dataset.loop_tokens_cut,
    }))?;
    Ok(Outcome::Done)
}

/// The tokens of a document, one after the other, as ids where there is no tokenizer; supervised runs stand between
/// `⟦` and `⟧`.
fn marked(document: &Document, text: Option<&ChatEncoder>) -> String {
    let mut out = String::new();
    let mut inside = false;
    for (&id, &supervised) in document.ids.iter().zip(&document.loss_mask) {
        if supervised != inside {
            out.push(if supervised { '⟦' } else { '⟧' });
            inside = supervised;
        }
        match text.and_then(|text| text.tokenizer().decode(&[id], false).ok()) {
            Some(piece) => out.push_str(&piece),
            None => {
                let _ = write!(out, "<{id}>");
            }
        }
    }
    if inside {
        out.push('⟧');
    }
    out
}
