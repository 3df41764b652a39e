//! squall as an endpoint of the QUIC interop runner: one test case, as client or as server.
//!
//! ```text
//!  settings   the runner's environment: role, case, folders, URLs
//!     │
//!   config    what the case requires of TLS and transport        facts   what happened, in lines
//!     │       (verifier: the server's certificate)                   │
//!  server ─┬─► http09   a request line, a file as the answer      ◄─┬─ client
//!          └─► http3    squall-h3 on both ends                    ◄─┘
//! ```
//!
//! The contract is the runner's (<https://github.com/quic-interop/quic-interop-runner>). `ROLE`,
//! `TESTCASE`, `REQUESTS`, `SSLKEYLOGFILE` and `QLOGDIR` are read from the environment; a server
//! serves `/www` with the certificate in `/certs`, a client downloads to `/downloads`. The exit
//! code is 0, 1 for a failure, or 127 for a case that is not supported.
//!
//! Without a container: `WWW`, `CERTS` and `DOWNLOADS` name other folders, `LISTEN` another
//! address, and `RESOLVE` holds `name=address` pairs that take precedence over the system's
//! resolver. `PREFERRED_IPV4` and `PREFERRED_IPV6` are the server's preferred addresses in
//! `connectionmigration`.

mod client;
mod config;
mod facts;
mod http09;
mod http3;
mod server;
mod settings;
mod verifier;

use std::error::Error;
use std::process::ExitCode;

use settings::{Role, Settings, Unusable};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The exit code by which the runner recognises an unsupported case.
const UNSUPPORTED: u8 = 127;

fn main() -> ExitCode {
    let settings = match Settings::from_environment() {
        Ok(settings) => settings,
        Err(unusable) => {
            eprintln!("squall: {unusable}");
            return match unusable {
                Unusable::Unsupported(_) => ExitCode::from(UNSUPPORTED),
                Unusable::Invalid(_) => ExitCode::FAILURE,
            };
        }
    };
    match run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("squall: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match settings.role {
            Role::Server => server::run(settings).await,
            Role::Client => client::run(settings).await,
        }
    })
}
