//! Other stacks under the contract of the QUIC interop runner, for `interop/matrix`.
//!
//! ```text
//!  settings, verifier   the runner's environment and certificates: those of squall's own endpoint
//!     │
//!  mod ──► quinn      HTTP/3 with hyperium's h3    ─┐
//!    ├───► s2n        HTTP/0.9 only                ─┼─►  files   what is served and downloaded
//!    └───► quiche     its own HTTP/3               ─┘
//! ```

mod files;
mod quiche;
mod quinn;
mod s2n;
#[path = "../../../interop/src/bin/endpoint/settings.rs"]
mod settings;
#[path = "../../../interop/src/bin/endpoint/verifier.rs"]
mod verifier;

use std::error::Error;
use std::process::ExitCode;

use clap::ValueEnum;

use self::settings::{Settings, Unusable};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The exit code by which the runner recognises an unsupported case.
const UNSUPPORTED: u8 = 127;

/// The application protocol of HTTP/0.9.
const HTTP09: &[u8] = b"hq-interop";

/// One end of a test case of the QUIC interop runner, played by another stack. The case is in the
/// environment, as for squall's own endpoint.
#[derive(clap::Args)]
pub(crate) struct Endpoint {
    stack: Stack,
}

#[derive(Clone, Copy, ValueEnum)]
enum Stack {
    Quinn,
    #[value(name = "s2n-quic")]
    S2n,
    Quiche,
}

/// Runs it. The exit code is the runner's.
pub(crate) fn run(args: &Endpoint) -> ExitCode {
    let settings = match Settings::from_environment() {
        Ok(settings) => settings,
        Err(unusable) => {
            eprintln!("{unusable}");
            return match unusable {
                Unusable::Unsupported(_) => ExitCode::from(UNSUPPORTED),
                Unusable::Invalid(_) => ExitCode::FAILURE,
            };
        }
    };
    let missing = match args.stack {
        Stack::Quinn => quinn::missing(&settings),
        Stack::S2n => s2n::missing(&settings),
        Stack::Quiche => quiche::missing(&settings),
    };
    if let Some(missing) = missing {
        eprintln!("{missing}");
        return ExitCode::from(UNSUPPORTED);
    }
    let result = match args.stack {
        Stack::Quinn => on_runtime(quinn::run(&settings)),
        Stack::S2n => on_runtime(s2n::run(&settings)),
        Stack::Quiche => quiche::run(&settings),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn on_runtime(run: impl Future<Output = Outcome<()>>) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(run)
}
