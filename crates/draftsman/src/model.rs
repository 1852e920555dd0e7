//! Opens what a model argument names: the target itself, and its tokenizer and chat template where they are needed.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use draftsman_contract::ThinkingMode;
use draftsman_data::{
    ChatEncoder, ChatTemplate, EncodeOptions, GgufTokenizer, Message, TemplateOptions, TextStream, Tokenizer,
    load_dataset,
};
use draftsman_eval::{PromptSource, SuitePrompt};
use draftsman_kernels::open;
use draftsman_models::{GgufFile, Target, weight_sha256};
use draftsman_train::Sample;

use crate::args::{DeviceArgs, TargetArgs};

/// Opens a target: a Hugging Face folder or a `.gguf` file.
pub(crate) fn open_target(path: &Path, run: &DeviceArgs) -> anyhow::Result<Box<dyn Target>> {
    let device = open(run.device)?;
    Ok(draftsman_models::open_target_with(path, &device, &run.options())?)
}

/// The template must ask for what it is told, or the switch would do nothing, silently.
fn check_thinking(template: &ChatTemplate, thinking: Option<ThinkingMode>) -> anyhow::Result<()> {
    if thinking.is_some() && !template.source().contains(THINKING) {
        bail!(
            "`--thinking` does nothing here: the chat template `{}` never asks for `{THINKING}`\n\nhint: leave the option out",
            template.name()
        );
    }
    Ok(())
}

/// The variable by which chat templates are told whether the target shall think.
const THINKING: &str = "enable_thinking";

/// A target with its text side.
pub(crate) struct Model {
    pub(crate) target: Box<dyn Target>,
    path: PathBuf,
    text: Option<ChatEncoder>,
    thinking: Option<ThinkingMode>,
}

/// Documents of a data file.
pub(crate) struct Documents {
    pub(crate) samples: Vec<Sample>,
    /// The answers were written by this very target (the file's settings say so).
    pub(crate) answers_of_target: bool,
    /// Answers whose looping end was cut off.
    pub(crate) loops_cut: usize,
    pub(crate) loop_tokens_cut: usize,
}

impl Model {
    /// The target, its tokenizer and its chat template.
    pub(crate) fn open(args: &TargetArgs) -> anyhow::Result<Self> {
        // The text side first: it is small, and its errors should not wait for the weights.
        let text = open_text(&args.target, args.thinking)?;
        Ok(Self { text: Some(text), ..Self::open_without_text(args)? })
    }

    /// The target and, where the model comes with them, its tokenizer and chat template: data and prompts that are
    /// token ids already need neither.
    pub(crate) fn open_for_data(args: &TargetArgs) -> anyhow::Result<Self> {
        let text = open_text_if_there(&args.target, args.thinking)?;
        Ok(Self { text, ..Self::open_without_text(args)? })
    }

    /// What the chat template was told about thinking.
    pub(crate) fn thinking(&self) -> Option<ThinkingMode> {
        self.thinking
    }

    /// The target alone, for commands that read and write token ids.
    pub(crate) fn open_without_text(args: &TargetArgs) -> anyhow::Result<Self> {
        Ok(Self {
            target: open_target(&args.target, &args.run)?,
            path: args.target.clone(),
            text: None,
            thinking: args.thinking,
        })
    }

    /// Name of the model for people: the last part of its path.
    pub(crate) fn name(&self) -> String {
        self.path.file_stem().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }

    /// The text side; an error where the model has none.
    pub(crate) fn text(&self) -> anyhow::Result<&ChatEncoder> {
        self.text.as_ref().ok_or_else(|| {
            anyhow!(
                "`{}` has no tokenizer, and text needs one\n\nhint: put tokenizer.json and the chat template beside the weights, or give token ids",
                self.path.display()
            )
        })
    }

    pub(crate) fn tokenizer_sha256(&self) -> Option<String> {
        self.text.as_ref().map(|text| text.tokenizer().sha256().to_owned())
    }

    pub(crate) fn chat_template_sha256(&self) -> Option<String> {
        self.text.as_ref().map(|text| text.template().sha256())
    }

    /// Tokens that end an answer.
    pub(crate) fn stop_ids(&self) -> Vec<u32> {
        self.target.spec().eos_token_ids.clone()
    }

    /// A user's message through the chat template, ready to be answered.
    pub(crate) fn user_prompt_ids(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        Ok(self.text()?.prompt_ids(&[Message::user(text)], None)?)
    }

    /// A suite's prompt as tokens: its first question, or the one after `answers`, which are token ids.
    pub(crate) fn suite_prompt_ids(&self, prompt: &SuitePrompt, answers: &[Vec<u32>]) -> anyhow::Result<Vec<u32>> {
        match &prompt.source {
            PromptSource::Ids(ids) => Ok(ids.clone()),
            PromptSource::Messages { messages, tools } => {
                let text = self.text()?;
                let mut messages = messages.clone();
                for (answer, question) in answers.iter().zip(&prompt.follow_ups) {
                    messages.push(Message::new("assistant", text.tokenizer().decode(answer, true)?));
                    messages.push(Message::user(question));
                }
                Ok(text.prompt_ids(&messages, tools.as_ref())?)
            }
        }
    }

    /// Turns produced ids into text as they come; `None` without a tokenizer.
    pub(crate) fn text_stream(&self) -> Option<TextStream<'_>> {
        self.text.as_ref().map(|text| text.tokenizer().stream(true))
    }

    /// Whether the settings beside an answers file name this target's weights.
    pub(crate) fn wrote(&self, answers: &Path) -> bool {
        answer_settings(answers)
            .is_some_and(|settings| settings["model_sha256"] == weight_sha256(self.target.embedding()))
    }

    /// Reads a training file. `mask_token_id` may not occur in it; a record longer than `max_length` is refused.
    pub(crate) fn training_documents(
        &self,
        path: &Path,
        max_length: Option<usize>,
        mask_token_id: Option<u32>,
    ) -> anyhow::Result<Documents> {
        let spec = self.target.spec();
        let options = EncodeOptions {
            vocab_size: Some(spec.vocab_size),
            mask_token_id,
            ..EncodeOptions::new(max_length.unwrap_or(usize::MAX))
        };
        let dataset = load_dataset(path, self.text.as_ref(), &options)?;
        Ok(Documents {
            answers_of_target: self.wrote(path),
            samples: dataset
                .documents
                .into_iter()
                .map(|d| Sample { id: d.id, ids: d.ids, loss_mask: d.loss_mask })
                .collect(),
            loops_cut: dataset.loops_cut,
            loop_tokens_cut: dataset.loop_tokens_cut,
        })
    }
}

/// The settings that `data regenerate` wrote beside an answers file.
pub(crate) fn answer_settings(answers: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(answer_settings_path(answers)).ok()?).ok()
}

/// Where they are.
pub(crate) fn answer_settings_path(answers: &Path) -> PathBuf {
    let mut settings = answers.as_os_str().to_owned();
    settings.push(".settings.json");
    settings.into()
}

/// As [`open_text`]; `None` for a model without a tokenizer.
pub(crate) fn open_text_if_there(path: &Path, thinking: Option<ThinkingMode>) -> anyhow::Result<Option<ChatEncoder>> {
    let there = if path.is_dir() {
        path.join("tokenizer.json").exists()
    } else {
        !path.exists() || GgufFile::open(path)?.metadata().get("tokenizer.ggml.tokens").is_some()
    };
    there.then(|| open_text(path, thinking)).transpose()
}

/// Tokenizer and chat template of a model folder or a `.gguf` file.
pub(crate) fn open_text(path: &Path, thinking: Option<ThinkingMode>) -> anyhow::Result<ChatEncoder> {
    if path.is_dir() {
        let tokenizer = Tokenizer::from_folder(path)?;
        let stop_ids = draftsman_models::read_target_spec(path)?.eos_token_ids;
        let template = ChatTemplate::from_folder(path, template_options(&tokenizer, thinking))?
            .with_context(|| format!("`{}` has no chat template\n\nhint: it is `chat_template.jinja` or `chat_template` in `tokenizer_config.json`", path.display()))?;
        check_thinking(&template, thinking)?;
        return Ok(ChatEncoder::new(tokenizer, template, stop_ids));
    }
    if !path.exists() {
        bail!(
            "`{}` does not exist\n\nhint: a target is a Hugging Face folder or a .gguf file; `bash scripts/fetch.sh` fetches a small one",
            path.display()
        );
    }
    let file = GgufFile::open(path)?;
    let meta = file.metadata();
    let place = path.display().to_string();
    let strings = |key: &str| -> anyhow::Result<Vec<String>> {
        let values = meta.get_str_array(key).with_context(|| format!("`{place}` has no list of strings `{key}`"))?;
        Ok(values.into_iter().map(str::to_owned).collect())
    };
    let tokenizer = Tokenizer::from_gguf(
        GgufTokenizer {
            model: meta.require_str("tokenizer.ggml.model")?.to_owned(),
            pre: meta.get_str("tokenizer.ggml.pre").map(str::to_owned),
            tokens: strings("tokenizer.ggml.tokens")?,
            token_types: meta
                .get_u32_array("tokenizer.ggml.token_type")
                .map(|types| types.into_iter().map(|kind| i32::try_from(kind).unwrap_or(i32::MAX)).collect())
                .with_context(|| format!("`{place}` has no list of integers `tokenizer.ggml.token_type`"))?,
            merges: strings("tokenizer.ggml.merges")?,
            bos_id: meta.get_u32("tokenizer.ggml.bos_token_id"),
            eos_id: meta.get_u32("tokenizer.ggml.eos_token_id"),
            unk_id: meta.get_u32("tokenizer.ggml.unknown_token_id"),
            add_bos: meta.get_bool("tokenizer.ggml.add_bos_token").unwrap_or(false),
        },
        &place,
    )?;
    let source = meta.require_str("tokenizer.chat_template")?;
    let template = ChatTemplate::new(
        source,
        &format!("{place}: tokenizer.chat_template"),
        template_options(&tokenizer, thinking),
    )?;
    check_thinking(&template, thinking)?;
    let stop_ids = draftsman_models::read_target_spec(path)?.eos_token_ids;
    Ok(ChatEncoder::new(tokenizer, template, stop_ids))
}

fn template_options(tokenizer: &Tokenizer, thinking: Option<ThinkingMode>) -> TemplateOptions {
    let name = |id: Option<u32>| id.and_then(|id| tokenizer.token(id));
    TemplateOptions {
        bos_token: name(tokenizer.bos_id()),
        eos_token: name(tokenizer.eos_id()),
        variables: thinking.map(|mode| (THINKING.to_owned(), (mode == ThinkingMode::On).into())).into_iter().collect(),
        ..TemplateOptions::default()
    }
}
