//! placeholder
pub(crate) fn measure_and_write(_: &std::path::Path) -> anyhow::Result<()> { Ok(()) }
