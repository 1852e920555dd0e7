//! Who computes the features here, and what a drafter was trained with instead.

use draftsman_contract::{Contract, FeatureOrigin};
use draftsman_models::Target;

use crate::args::DeviceArgs;
use crate::model::Model;
use crate::printer::Printer;

/// This program, with the options it computes features by.
pub(crate) fn feature_origin(target: &dyn Target, run: &DeviceArgs) -> FeatureOrigin {
    FeatureOrigin {
        engine: Some(format!("draftsman {}", env!("CARGO_PKG_VERSION"))),
        dtype: Some(run.dtype.to_string()),
        linear_attention: (target.spec().delta_layers() > 0).then(|| run.delta_rule.to_string()),
    }
}

/// Warns where the drafter `name` was trained on features, prompts or answers of another making than these. What its
/// contract does not state is not compared.
pub(crate) fn warn(name: &str, contract: &Contract, model: &Model, run: &DeviceArgs, printer: &Printer) {
    let here = feature_origin(model.target.as_ref(), run);
    let engine = |origin: &FeatureOrigin| origin.engine.as_deref().and_then(|e| e.split(' ').next()).map(str::to_owned);
    let thinking = |mode| format!("{mode:?}").to_lowercase();
    let compared = [
        ("engine of its features", engine(&contract.features), engine(&here)),
        ("dtype of its features", contract.features.dtype.clone(), here.dtype.clone()),
        ("linear attention of its features", contract.features.linear_attention.clone(), here.linear_attention.clone()),
        ("tokenizer", contract.tokenizer_sha256.clone(), model.tokenizer_sha256()),
        ("chat template", contract.chat_template_sha256.clone(), model.chat_template_sha256()),
        ("thinking mode", contract.thinking.map(thinking), model.thinking().map(thinking)),
    ];
    for (what, was, is) in compared {
        if let (Some(was), Some(is)) = (was, is)
            && was != is
        {
            let short = |text: String| text.chars().take(24).collect::<String>();
            printer.warning(format!(
                "`{name}` was trained with another {what}: {} there, {} here; acceptance may differ for that reason alone",
                short(was),
                short(is)
            ));
        }
    }
}
