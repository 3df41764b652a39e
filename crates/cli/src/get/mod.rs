//! `squall get`: downloads, with curl's options and exit codes.
//!
//! ```text
//!   args ─► client     HTTP/3 by squall-h3, or HTTP/2 and HTTP/1.1 by hyper
//!             │
//!           transfer   one URL: redirects, ranges, where its bytes go   (all at the same time)
//!             │
//!           exit       why it failed, by curl's numbers
//! ```

pub(crate) mod args;
mod client;
mod exit;
mod transfer;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use http::Uri;
use indicatif::MultiProgress;
use serde::Serialize;
use squall_yard::error::{Failure, Result, context};
use squall_yard::interrupt;
use tokio::sync::oneshot;

use self::args::Get;
use self::client::{Client, Settings};
use self::exit::Failed;
use self::transfer::{Fetched, Target, Transfer};
use crate::output::{print_json, print_json_error};
use crate::trust;

/// What a shell reports for a command that Ctrl-C ended: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Runs the command. Its exit code is that of the last transfer that failed.
pub(crate) fn main(args: Get) -> ExitCode {
    let is_json = args.json;
    match run(args) {
        Ok(code) => code,
        Err(failure) => {
            if is_json {
                print_json_error(&failure);
            }
            eprintln!("squall: {failure}");
            ExitCode::from(exit::Code::FailedInit as u8)
        }
    }
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report {
    transfers: Vec<Row>,
}

/// One transfer, with the names of curl's `-w`.
#[derive(Serialize)]
struct Row {
    url: String,
    #[serde(flatten)]
    fetched: Option<Fetched>,
    exitcode: u8,
    errormsg: Option<String>,
}

fn run(args: Get) -> Result<ExitCode> {
    let targets = targets(&args)?;
    let data = args.data.as_deref().map(data).transpose()?;
    let start = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(context("cannot start"))
    };
    let (waiting, fetching) = (start()?, start()?);
    let settings = Settings {
        tls: trust::client_config(
            args.insecure,
            args.cacert.as_deref(),
            Arc::clone(&squall::provider()),
        )?,
        resolve: args.resolve.clone(),
        http3_only: args.http3_only,
        connect_timeout: args.connect_timeout,
    };
    // Before the endpoint's threads start.
    interrupt::listen()?;
    let client = Arc::new(Client::new(settings).map_err(context("cannot open a UDP socket"))?);
    let args = Arc::new(args);
    let (done, results) = oneshot::channel();
    let transfers = fetch_all(Arc::clone(&client), Arc::clone(&args), data, targets);
    // Writing to a pipe that is not read blocks this thread; an interrupt must not wait for it.
    std::thread::Builder::new()
        .name("transfers".to_owned())
        .spawn(move || done.send(fetching.block_on(transfers)))
        .map_err(context("cannot start a thread"))?;
    let results = waiting.block_on(async {
        let results = interrupt::unless_due(None, results).await;
        client.close().await;
        results
    });
    match results {
        Some(results) => Ok(report(&args, results.map_err(context("cannot fetch"))?)),
        None => Ok(ExitCode::from(INTERRUPTED)),
    }
}

/// Fetches all URLs at the same time.
async fn fetch_all(
    client: Arc<Client>,
    args: Arc<Get>,
    data: Option<Bytes>,
    targets: Vec<Target>,
) -> Vec<std::result::Result<Fetched, Failed>> {
    let bars = MultiProgress::new();
    let tasks: Vec<_> = (args.urls.iter().cloned().zip(targets))
        .map(|(url, target)| {
            let transfer = Transfer {
                client: Arc::clone(&client),
                args: Arc::clone(&args),
                data: data.clone(),
                target,
                bars: bars.clone(),
            };
            tokio::spawn(within(args.max_time, transfer.run(url)))
        })
        .collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(
            task.await
                .unwrap_or_else(|error| Err(Failed::new(exit::Code::Receive, error))),
        );
    }
    results
}

/// Applies the time limit.
async fn within(
    limit: Option<std::time::Duration>,
    transfer: impl Future<Output = std::result::Result<Fetched, Failed>>,
) -> std::result::Result<Fetched, Failed> {
    let Some(limit) = limit else {
        return transfer.await;
    };
    match tokio::time::timeout(limit, transfer).await {
        Ok(result) => result,
        Err(_) => Err(Failed::new(
            exit::Code::Timeout,
            "the time of --max-time is over",
        )),
    }
}

/// Reports failures.
fn report(args: &Get, results: Vec<std::result::Result<Fetched, Failed>>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let mut transfers = Vec::new();
    for (url, result) in args.urls.iter().zip(results) {
        let (fetched, failed) = match result {
            Ok(fetched) => (Some(fetched), None),
            Err(failed) => (None, Some(failed)),
        };
        if let Some(failed) = &failed {
            code = ExitCode::from(failed.code as u8);
            if !args.silent {
                eprintln!("squall: {url}: {failed}");
            }
        }
        transfers.push(Row {
            url: url.to_string(),
            fetched,
            exitcode: failed.as_ref().map_or(0, |failed| failed.code as u8),
            errormsg: failed.map(|failed| failed.to_string()),
        });
    }
    if args.json && print_json(&Report { transfers }).is_err() {
        return ExitCode::from(exit::Code::WriteError as u8);
    }
    code
}

/// The target of each URL.
fn targets(args: &Get) -> Result<Vec<Target>> {
    if args.output.len() > args.urls.len() {
        return Err(Failure::new("there are more -o than URLs"));
    }
    let to_files = args.remote_name || args.output.len() == args.urls.len();
    if args.json && !to_files {
        return Err(Failure::new(
            "--json prints to standard output: name files with -o or -O",
        ));
    }
    if args.continue_at.is_some() && !to_files {
        return Err(Failure::new("-C needs files: name them with -o or -O"));
    }
    let targets = args.urls.iter().enumerate().map(|(i, url)| {
        if args.remote_name {
            return remote_name(url).map(Target::File);
        }
        Ok(args
            .output
            .get(i)
            .map_or(Target::Standard, |file| Target::File(file.clone())))
    });
    targets.collect()
}

/// The last part of a URL's path.
fn remote_name(url: &Uri) -> Result<PathBuf> {
    match url.path().rsplit('/').next() {
        Some(name) if !matches!(name, "" | "." | "..") && !name.contains('\\') => Ok(name.into()),
        _ => Err(Failure::new(format!(
            "{url} does not end in a name: use -o FILE"
        ))),
    }
}

/// The data that `-d` sends.
fn data(text: &str) -> Result<Bytes> {
    let Some(file) = text.strip_prefix('@') else {
        return Ok(text.to_owned().into());
    };
    if file == "-" {
        let mut all = Vec::new();
        let read = std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut all);
        return read
            .map(|_| all.into())
            .map_err(context("cannot read standard input"));
    }
    std::fs::read(file)
        .map(Bytes::from)
        .map_err(context(&format!("cannot read {file}")))
}
