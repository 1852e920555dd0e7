//! Ctrl-C: the first one asks the command to save and stop, the second one ends the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Signal number behind exit code 130.
pub(crate) const SIGINT: u8 = 2;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The flag that the first SIGINT or SIGTERM raises; the handler is installed by the first call.
pub(crate) fn flag() -> anyhow::Result<Arc<AtomicBool>> {
    if let Some(flag) = FLAG.get() {
        return Ok(flag.clone());
    }
    let flag = FLAG.get_or_init(Arc::default).clone();
    let raised = flag.clone();
    ctrlc::set_handler(move || {
        if raised.swap(true, Ordering::SeqCst) {
            #[expect(clippy::exit, reason = "the second signal means now")]
            std::process::exit(128 + i32::from(SIGINT));
        }
    })?;
    Ok(flag)
}
