//! Golden cases of `scripts/golden/drafter.py`.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use draftsman_contract::{BlockLayout, Documents, HoleRule, LayoutRules, default_gamma};
use draftsman_kernels::{Weight, WeightDtype};
use draftsman_models::{Context, Dflash, SafetensorsSource, WeightSource, load_drafter};

use crate::compare::values;

/// All cases, for tests that hold for every drafter.
pub(crate) const CASES: [&str; 4] = ["full", "sliding", "two_sided", "causal"];

/// Folder of a case.
pub(crate) fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(format!("drafter_{case}"))
}

/// A drafter, its inputs and the layout of its training blocks.
pub(crate) struct Case {
    pub(crate) device: Device,
    pub(crate) golden: SafetensorsSource,
    pub(crate) drafter: Dflash,
    pub(crate) ids: Vec<u32>,
    pub(crate) loss_mask: Vec<bool>,
    pub(crate) bounds: Vec<std::ops::Range<usize>>,
    pub(crate) anchors: Vec<usize>,
    pub(crate) rules: LayoutRules,
    pub(crate) layout: BlockLayout,
    pub(crate) embedding: Weight,
    pub(crate) head: Weight,
}

impl Case {
    pub(crate) fn open(name: &'static str, device: Device) -> Self {
        let golden = SafetensorsSource::open_file(&folder(name).join("golden.safetensors")).unwrap();
        let drafter = load_drafter(&folder(name), &device).unwrap();
        let whole = |name: &str| -> Vec<usize> {
            golden.load_i64(name).unwrap().into_iter().map(|v| usize::try_from(v).unwrap()).collect()
        };
        let ids: Vec<u32> = whole("input_ids").into_iter().map(|id| id as u32).collect();
        let loss_mask: Vec<bool> = golden.load_f32("loss_mask").unwrap().into_iter().map(|m| m != 0.0).collect();
        let bounds: Vec<_> = whole("documents").chunks(2).map(|b| b[0]..b[1]).collect();
        let anchors = whole("anchors");
        let holes = if whole("holes_cut") == [1] { HoleRule::Cut } else { HoleRule::Skip };
        let contract = &drafter.config().contract;
        let rules = LayoutRules::from(contract, holes, default_gamma(contract.block_size));
        let documents = Documents { len: ids.len(), bounds: &bounds, loss_mask: &loss_mask };
        let layout = BlockLayout::build(&rules, &documents, &anchors).unwrap();
        let weight = |name: &str| {
            let shape: [usize; 2] = golden.shape(name).unwrap().try_into().unwrap();
            Weight::from_f32(golden.load_f32(name).unwrap(), shape, WeightDtype::F32, &device).unwrap()
        };
        let (embedding, head) = (weight("embed.weight"), weight("lm_head.weight"));
        Self { device, golden, drafter, ids, loss_mask, bounds, anchors, rules, layout, embedding, head }
    }

    pub(crate) fn documents(&self) -> Documents<'_> {
        Documents { len: self.ids.len(), bounds: &self.bounds, loss_mask: &self.loss_mask }
    }

    pub(crate) fn positions(&self) -> Vec<u32> {
        BlockLayout::context_positions(&self.documents(), &self.rules)
    }

    /// Feature rows `[T, F * H]`, row-major.
    pub(crate) fn features(&self) -> Vec<f32> {
        self.golden.load_f32("features").unwrap()
    }

    /// Some rows of features as a tensor.
    pub(crate) fn feature_rows(&self, features: &[f32], rows: std::ops::Range<usize>) -> Tensor<2> {
        let width = self.golden.shape("features").unwrap()[1];
        let values = features[rows.start * width..rows.end * width].to_vec();
        Tensor::from_data(TensorData::new(values, [rows.len(), width]), &self.device)
    }

    /// Input rows of the blocks of `layout` over tokens `ids`.
    pub(crate) fn block(&self, drafter: &Dflash, layout: &BlockLayout, ids: &[u32]) -> Tensor<2> {
        let ids = layout.block_ids(ids, drafter.config().contract.mask_token_id);
        drafter.embed(&ids, &self.embedding).unwrap()
    }

    /// The packed training forward of `layout`: every observed tensor by name, `context` and the returned rows
    /// (`output`) too.
    pub(crate) fn train_forward(&self, layout: &BlockLayout, features: &[f32], ids: &[u32]) -> Observed {
        let mut seen = Observed::default();
        let context = self.drafter.context(self.feature_rows(features, 0..layout.context_rows)).unwrap();
        seen.record("context", &context);
        let block = self.block(&self.drafter, layout, ids);
        let positions = self.positions();
        let context = Context::Rows { context, positions: &positions };
        let output = self.drafter.forward(block, layout, context, Some(&mut |n, t| seen.record(n, t))).unwrap();
        seen.record("output", &output);
        seen
    }
}

/// Named intermediate values, in the order they were seen.
#[derive(Default)]
pub(crate) struct Observed(pub(crate) Vec<(String, Vec<usize>, Vec<f32>)>);

impl Observed {
    pub(crate) fn record(&mut self, name: &str, value: &Tensor<2>) {
        self.0.push((name.to_string(), value.dims().to_vec(), values(value.clone())));
    }

    /// Rows `rows` of every tensor but `context`.
    pub(crate) fn rows(&self, rows: std::ops::Range<usize>) -> Vec<(String, Vec<f32>)> {
        let cut = |(name, shape, values): &(String, Vec<usize>, Vec<f32>)| {
            (name.clone(), values[rows.start * shape[1]..rows.end * shape[1]].to_vec())
        };
        self.0.iter().filter(|(name, ..)| name != "context").map(cut).collect()
    }
}
