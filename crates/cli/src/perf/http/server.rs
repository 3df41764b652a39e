//! The server: `squall serve` as it is, in a process of its own on the server's core.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use squall_yard::error::{Failure, Result, context};
use squall_yard::sys;

use super::thread::on_core;

/// Connections that may be open at a time, as of `squall serve` by itself.
const CONNECTIONS: usize = 10_000;

/// A running server; ended when dropped.
pub(super) struct Server {
    process: Child,
    pub(super) address: SocketAddr,
}

impl Server {
    /// Starts a server for a folder, with one worker for TCP and one for QUIC, both on this core.
    ///
    /// # Errors
    /// It did not start, with its own words.
    pub(super) fn start(
        folder: &Path,
        loopback: IpAddr,
        core: Option<usize>,
        connections: usize,
    ) -> Result<Self> {
        let failed = || context("cannot start squall serve");
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
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A process runs where the thread that started it may run.
        let process = on_core(core, || command.spawn().map_err(failed()))?;
        let mut server = Self {
            process,
            address: (loopback, 0).into(),
        };
        server.address = server.announced()?;
        Ok(server)
    }

    /// The address in its first line, `listening on ADDR:PORT (TCP and UDP)`.
    fn announced(&mut self) -> Result<SocketAddr> {
        let mut line = String::new();
        if let Some(stdout) = &mut self.process.stdout {
            // Without a line it has ended, and says why below.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let address = line
            .strip_prefix("listening on ")
            .and_then(|rest| rest.split(' ').next()?.parse().ok());
        address.ok_or_else(|| self.complaint())
    }

    /// Why it does not run.
    fn complaint(&mut self) -> Failure {
        let _ = self.process.kill();
        let mut words = String::new();
        if let Some(stderr) = &mut self.process.stderr {
            let _ = stderr.read_to_string(&mut words);
        }
        Failure::new(format!("squall serve did not start: {}", words.trim()))
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
        // It has nothing to finish, and may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
