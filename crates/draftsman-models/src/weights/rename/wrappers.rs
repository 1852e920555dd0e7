//! What trainers put around the name of a parameter.

/// Parts that wrapping modules insert, anywhere in a name: DistributedDataParallel and DataParallel, torch.compile, FSDP,
/// activation checkpointing, Lightning Fabric. No published name has one of these parts.
const WRAPPERS: [&str; 5] =
    ["module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"];

/// Modules and dictionaries that a drafter is a part of.
const CONTAINERS: [&str; 12] = [
    "state_dict",
    "model_state_dict",
    "model",
    "draft_model",
    "draft",
    "drafter",
    "student",
    "dflash",
    "speculator",
    "net",
    "checkpoint",
    "app",
];

/// What else a training checkpoint holds, by the first part of the name.
const TRAINING: [&str; 17] = [
    "optimizer",
    "optimizers",
    "optimizer_state",
    "optimizer_states",
    "optimizer_state_dict",
    "optim",
    "scheduler",
    "scheduler_state_dict",
    "lr_scheduler",
    "lr_schedulers",
    "lr_scheduler_state_dict",
    "scaler",
    "grad_scaler",
    "rng_state",
    "rng_states",
    "cuda_rng_state",
    "torch_rng_state",
];

/// The names that a tensor may go by, the one in the file first.
pub(super) fn candidates(name: &str) -> Vec<String> {
    let mut parts: Vec<&str> = name.split('.').filter(|part| !WRAPPERS.contains(part)).collect();
    let mut candidates = vec![name.to_string(), parts.join(".")];
    while parts.first().is_some_and(|first| CONTAINERS.contains(first)) {
        parts.remove(0);
        candidates.push(parts.join("."));
    }
    candidates
}

/// True for the states of optimizers and schedulers and of random generators.
pub(super) fn is_training_state(candidates: &[String]) -> bool {
    candidates.iter().any(|name| TRAINING.contains(&name.split('.').next().unwrap_or(name)))
}

/// True for the parameter that FSDP makes of many.
pub(super) fn is_flat_parameter(name: &str) -> bool {
    name.split('.').any(|part| part == "_flat_param" || part == "flat_param")
}
