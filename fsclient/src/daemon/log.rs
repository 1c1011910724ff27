//! Logs: to standard error, which is a file when detached. `LEASEFS_LOG` chooses what
//! (as `debug` or `fsclient::rpc=trace`).

use leasefs_protocol::EscapedLines;
use tracing_subscriber::EnvFilter;

/// fuser warns of every request that is meant to be answered with ENOSYS.
const USUAL: &str = "info,fuser=error";

/// Starts logging. Later calls do nothing.
pub(super) fn start() {
    let filter = EnvFilter::try_from_env("LEASEFS_LOG").unwrap_or_else(|_| EnvFilter::new(USUAL));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| EscapedLines(std::io::stderr()))
        .with_ansi(false)
        .try_init();
}
