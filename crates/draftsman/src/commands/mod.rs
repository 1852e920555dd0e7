//! One file per subcommand.

pub(crate) mod compare;
pub(crate) mod data_inspect;
pub(crate) mod data_regenerate;
pub(crate) mod eval;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod quickstart;
pub(crate) mod trace;
pub(crate) mod train;
