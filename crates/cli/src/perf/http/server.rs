//! The server: an ordinary `squall serve` in a separate process on the server's core.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use squall_yard::error::{Failure, Result, context};
use squall_yard::stages::Sample;
use squall_yard::sys;

use super::metrics;
use super::thread::on_core;

/// Connections that may be open at a time, as is the default of `squall serve`.
const CONNECTIONS: usize = 10_000;

/// A running server; ended when dropped.
pub(super) struct Server {
    process: Child,
    pub(super) address: SocketAddr,
    /// Where it serves its metrics.
    metrics: Option<SocketAddr>,
}

impl Server {
    /// Starts a server for a folder, with one worker for TCP and one for QUIC, both on this core.
    /// With `stage_times` it measures its stages.
    ///
    /// # Errors
    /// It did not start; the error quotes what it printed.
    pub(super) fn start(
        folder: &Path,
        loopback: IpAddr,
        core: Option<usize>,
        connections: usize,
        stage_times: bool,
    ) -> Result<Self> {
        let failed = || context("cannot start squall serve");
        let metrics = SocketAddr::from((loopback, 0)).to_string();
        let measured: &[&str] = match stage_times {
            true => &["--stage-times", "--metrics", &metrics],
            false => &[],
        };
        let program = std::env::current_exe().map_err(failed())?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg(folder)
            .args(["--listen", &SocketAddr::from((loopback, 0)).to_string()])
            .args(["--workers", "1", "--until-eof"])
            .args([
                "--max-connections",
                &connections.max(CONNECTIONS).to_string(),
            ])
            .args(measured)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A process inherits the cores of the thread that starts it.
        let process = on_core(core, || command.spawn().map_err(failed()))?;
        let mut server = Self {
            process,
            address: (loopback, 0).into(),
            metrics: None,
        };
        server.find()?;
        Ok(server)
    }

    /// Reads its addresses from its first lines: `metrics at http://ADDR:PORT/metrics`, if any, and
    /// `listening on ADDR:PORT (TCP and UDP)`.
    fn find(&mut self) -> Result<()> {
        // Without these lines it has ended, and says why.
        let lines = self
            .process
            .stdout
            .as_mut()
            .map(|out| BufReader::new(out).lines());
        for line in lines.into_iter().flatten().map_while(std::io::Result::ok) {
            let address =
                |before, after| line.strip_prefix(before)?.split(after).next()?.parse().ok();
            if let Some(address) = address("metrics at http://", '/') {
                self.metrics = Some(address);
            }
            if let Some(address) = address("listening on ", ' ') {
                self.address = address;
                return Ok(());
            }
        }
        Err(self.complaint())
    }

    /// Why it is not running.
    fn complaint(&mut self) -> Failure {
        let _ = self.process.kill();
        let mut words = String::new();
        if let Some(stderr) = &mut self.process.stderr {
            let _ = stderr.read_to_string(&mut words);
        }
        Failure::new(format!("squall serve did not start: {}", words.trim()))
    }

    /// The time of its stages so far, if it measures them.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) fn stages(&self) -> Result<Option<Sample>> {
        self.metrics.map(metrics::fetch).transpose()
    }

    /// CPU time, user and system, of all its threads.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let pid = i32::try_from(self.process.id()).ok();
        pid.and_then(sys::process_cpu_of)
            .ok_or_else(|| Failure::new("the server has ended"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to finish, and may already have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
