//! From a weight file to a running decoder: everything is checked first, then converted tensor by tensor.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use draftsman_kernels::{DeltaRule, RopeTable, Weight, WeightDtype};

use super::TargetOptions;
use super::architecture::Architecture;
use super::decoder::{Decoder, Layer, Layers};
use super::identity::stored_sha256;
use super::spec::TargetSpec;
use super::tensors::{Format, Listing, Tensors};
use crate::error::{ModelError, Problems};
use crate::weights::{TensorExpectation, WeightSource, check_memory, check_tensors, file_prefix};

/// A model in one file: what it is, and how that file holds it.
#[derive(Clone)]
pub(super) struct Blueprint {
    pub(super) architecture: &'static Architecture,
    pub(super) spec: TargetSpec,
    pub(super) format: Format,
}

/// What stands before and after the layers.
struct Ends {
    embedding: Weight,
    /// `None`: the embedding.
    head: Option<Weight>,
    final_norm: Tensor<1>,
}

impl Blueprint {
    /// The form of a Hugging Face folder: below which prefix its names stand.
    pub(super) fn hugging_face(spec: TargetSpec, source: Option<&dyn WeightSource>) -> Result<Self, ModelError> {
        let nested = "model.language_model.";
        let is_nested = source.is_some_and(|s| s.shape(&format!("{nested}embed_tokens.weight")).is_some());
        let prefix = if is_nested { nested } else { "model." };
        Self::new(spec, Format::HuggingFace { prefix })
    }

    /// The form of a GGUF file.
    pub(super) fn gguf(spec: TargetSpec) -> Result<Self, ModelError> {
        let mut blueprint = Self::new(spec, Format::Gguf { renames: &[] })?;
        if let Some(gguf) = &blueprint.architecture.gguf {
            blueprint.format = Format::Gguf { renames: gguf.renames };
        }
        Ok(blueprint)
    }

    fn new(spec: TargetSpec, format: Format) -> Result<Self, ModelError> {
        let architecture = Architecture::of_name(&spec.architecture).ok_or_else(|| {
            ModelError::InvalidInput(format!("no target architecture is called {:?}", spec.architecture))
        })?;
        Ok(Self { architecture, spec, format })
    }

    fn ends(&self, tensors: &Tensors<'_>) -> Result<Ends, ModelError> {
        const HEAD: &str = "lm_head.weight";
        let TargetSpec { vocab_size, hidden_size, tied, .. } = self.spec;
        let table = [vocab_size, hidden_size];
        let embedding = tensors.matrix("embed_tokens.weight", table)?;
        let stored = !tied || tensors.has(HEAD);
        let head = stored.then(|| tensors.matrix(HEAD, table)).transpose()?;
        // Tied exports may carry a copy of the embedding. Where it is no copy the library does not tie them either.
        let head = head.filter(|head| !tied || head.to_f32() != embedding.to_f32());
        Ok(Ends { embedding, head, final_norm: tensors.norm("norm.weight", hidden_size)? })
    }

    fn layer(&self, tensors: Tensors<'_>, index: usize) -> Result<Layer, ModelError> {
        (self.architecture.layer)(&self.spec, &tensors.layer(index), index)
    }

    fn loading<'a>(&self, source: &'a dyn WeightSource, dtype: WeightDtype, device: &'a Device) -> Tensors<'a> {
        let tensors = Tensors::load(source, self.format, dtype, device);
        tensors.zero_centred_norms(self.architecture.zero_centred_norms)
    }

    /// What the embedding, the head and the norm between them need, and what every layer needs.
    fn list(
        &self,
        source: Option<&dyn WeightSource>,
        dtype: WeightDtype,
    ) -> Result<(Listing, Vec<Listing>), ModelError> {
        let device = Device::flex();
        let listed = |read: &dyn Fn(Tensors<'_>) -> Result<(), ModelError>| {
            let listing = RefCell::default();
            read(Tensors::list(&listing, source, self.format, dtype, &device))?;
            Ok::<Listing, ModelError>(listing.into_inner())
        };
        let ends = listed(&|tensors| self.ends(&tensors).map(drop))?;
        let layers = (0..self.spec.num_layers).map(|index| listed(&|tensors| self.layer(tensors, index).map(drop)));
        Ok((ends, layers.collect::<Result<_, _>>()?))
    }

    /// Everything that can be known to be wrong before reading; adds a note on what is left out. Returns the hash of the
    /// layers.
    fn check(&mut self, source: &dyn WeightSource, options: &TargetOptions) -> Result<String, ModelError> {
        let present = source.names().len();
        // More layers than a file has tensors: refuse before listing the names that would be needed.
        if self.spec.num_layers > present {
            return Err(ModelError::malformed(
                source.path(),
                format!(
                    "the configuration has {} layers, the weights have {present} tensors in all",
                    self.spec.num_layers
                ),
                "configuration and weights belong to different models",
            ));
        }
        let (ends, layers) = self.list(Some(source), options.dtype)?;
        let all = || std::iter::once(&ends).chain(&layers);
        self.check_names(source, &ends, &layers)?;
        let layer_bytes = layers.iter().map(|l| l.resident_bytes);
        let layer_bytes =
            if options.streamed { layer_bytes.max().unwrap_or(0) } else { layer_bytes.fold(0, u64::saturating_add) };
        let resident = ends.resident_bytes.saturating_add(layer_bytes);
        check_memory(source.path(), resident, all().map(|l| l.largest).max().unwrap_or(0))?;
        let stored = layers.iter().flat_map(|l| l.floats.iter().chain(&l.bytes)).map(|e| e.name.as_str());
        Ok(stored_sha256(source, &stored.collect::<Vec<_>>()))
    }

    /// Every tensor that is needed and nothing else, with its shape and type; adds a note on what is left out.
    fn check_names(&mut self, source: &dyn WeightSource, ends: &Listing, layers: &[Listing]) -> Result<(), ModelError> {
        let all = || std::iter::once(ends).chain(layers);
        let floats: Vec<TensorExpectation> = all().flat_map(|l| l.floats.iter().cloned()).collect();
        let bytes: Vec<&TensorExpectation> = all().flat_map(|l| &l.bytes).collect();
        check_stored(source, &floats, &bytes, &|name| (self.architecture.ignored)(&self.spec, name))?;
        self.note_left_out(source);
        Ok(())
    }

    /// Checks the tensors of a file without reading them.
    pub(super) fn check_file(&mut self, source: &dyn WeightSource) -> Result<(), ModelError> {
        let (ends, layers) = self.list(Some(source), WeightDtype::F32)?;
        self.check_names(source, &ends, &layers)
    }

    /// Says which tensors of the file nobody reads.
    fn note_left_out(&mut self, source: &dyn WeightSource) {
        if !self.architecture.nested {
            return;
        }
        let names: Vec<String> =
            source.names().into_iter().filter(|name| (self.architecture.ignored)(&self.spec, name)).collect();
        if let [first, ..] = names.as_slice() {
            self.spec
                .notes
                .push(format!("{} tensors of the file are not loaded (`{first}` is the first)", names.len()));
        }
    }

    /// Loads all of it.
    pub(super) fn load(
        mut self,
        source: &dyn WeightSource,
        device: &Device,
        options: &TargetOptions,
    ) -> Result<Decoder, ModelError> {
        let layers_sha256 = self.check(source, options)?;
        let tensors = || self.loading(source, options.dtype, device);
        let ends = self.ends(&tensors())?;
        let layers = (0..self.spec.num_layers).map(|index| self.layer(tensors(), index));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        Ok(self.decoder(ends, Layers::Resident(layers), device, options.delta_rule, layers_sha256))
    }

    /// Loads embedding and head; every forward reads the layers one after the other.
    pub(super) fn stream(
        mut self,
        source: Arc<dyn WeightSource>,
        device: &Device,
        options: &TargetOptions,
    ) -> Result<Decoder, ModelError> {
        let layers_sha256 = self.check(&*source, options)?;
        let ends = self.ends(&self.loading(&*source, options.dtype, device))?;
        let (blueprint, dtype, on) = (self.clone(), options.dtype, device.clone());
        let read = move |index| blueprint.layer(blueprint.loading(&*source, dtype, &on), index);
        Ok(self.decoder(ends, Layers::Streamed(Box::new(read)), device, options.delta_rule, layers_sha256))
    }

    fn decoder(
        mut self,
        ends: Ends,
        layers: Layers,
        device: &Device,
        delta_rule: DeltaRule,
        layers_sha256: String,
    ) -> Decoder {
        let Ends { embedding, head, final_norm } = ends;
        self.spec.tied = head.is_none();
        Decoder {
            rope: RopeTable::new(&self.spec.rope, self.spec.rotary_dim),
            device: device.clone(),
            head: head.unwrap_or_else(|| embedding.clone()),
            embedding,
            final_norm,
            layers_sha256,
            layers,
            delta_rule,
            spec: self.spec,
        }
    }
}

/// [`check_tensors`] for a model with tensors of bytes beside its floats.
fn check_stored(
    source: &dyn WeightSource,
    floats: &[TensorExpectation],
    bytes: &[&TensorExpectation],
    ignore: &dyn Fn(&str) -> bool,
) -> Result<(), ModelError> {
    let byte_names: BTreeSet<&str> = bytes.iter().map(|e| e.name.as_str()).collect();
    let mut problems = match check_tensors(source, floats, &|name| byte_names.contains(name) || ignore(name)) {
        Ok(()) => Problems::default(),
        Err(ModelError::Problems { problems, .. }) => problems,
        Err(error) => return Err(error),
    };
    for TensorExpectation { name, shape } in bytes {
        let file = file_prefix(source, name);
        match (source.shape(name), source.dtype(name)) {
            (Some(found), _) if found != shape.as_slice() => {
                problems.push(format!("{file}tensor `{name}` has shape {found:?}, expected {shape:?}"));
            }
            (Some(_), Some((dtype, _))) if dtype != "U8" => {
                problems.push(format!("{file}tensor `{name}` is stored as {dtype}, expected bytes (U8)"));
            }
            (Some(_), _) => {}
            (None, _) => problems.push(format!("{file}tensor `{name}` {shape:?} is missing")),
        }
    }
    problems.into_model_result(source.path())
}

/// Every tensor of a model's Hugging Face files with its stored shape, known from the configuration alone.
pub fn target_tensors(spec: &TargetSpec) -> Result<Vec<TensorExpectation>, ModelError> {
    let (ends, layers) = Blueprint::hugging_face(spec.clone(), None)?.list(None, WeightDtype::F32)?;
    Ok(std::iter::once(ends).chain(layers).flat_map(|l| l.floats).collect())
}
