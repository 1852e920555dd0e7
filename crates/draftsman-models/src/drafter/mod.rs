//! Drafters: small trained models that draft a block of tokens for a frozen target.
//!
//! One file an algorithm (`dflash`), chosen by the `architectures` of its config; what a drafter *means* (positions,
//! masks, slots, mask token, rope) is read from its [`Contract`](draftsman_contract::Contract) at run time and never
//! a constant here.

mod cache;
mod checkpoint;
mod config;
mod config_json;
mod dflash;
mod init;
mod open;
mod parameters;

pub use cache::DrafterCache;
pub use checkpoint::save_drafter;
pub use config::{DrafterConfig, check_pair};
pub use dflash::{Context, Dflash, Provide};
pub use init::{Init, init};
pub use open::{OpenedDrafter, load_drafter, open_drafter};
pub use parameters::{NamedTensor, Parameter};
