//! Private networks, for workloads that need a certain link: namespaces made with iproute2's `ip`
//! and `tc`, and removed afterwards.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use squall_yard::error::{Failure, Result, context};

use super::case::{Case, Workload};

/// How much a limited link lets pass at once, in bytes: at least a packet of loopback, and half a
/// millisecond of 10 Gbit/s, which is about the timer's grain.
const BURST: &str = "640kb";
/// How long a packet may wait for a limited link before it is dropped.
const LATENCY: &str = "20ms";
/// The two ends of a link between namespaces.
const ENDS: [(&str, Ipv4Addr); 2] = [
    ("server", Ipv4Addr::new(192, 0, 2, 1)),
    ("client", Ipv4Addr::new(192, 0, 2, 2)),
];

/// Where the two ends of a measurement run.
pub(super) struct Network {
    /// One for both ends, or one each; none: this process's own network.
    namespaces: Vec<Namespace>,
    /// The server's address and the client's.
    pub(super) local: [Ipv4Addr; 2],
}

impl Network {
    /// The network that a case needs.
    ///
    /// # Errors
    /// Only the superuser can create namespaces, and `ip`, `tc` and `ethtool` must be installed.
    pub(super) fn of(case: &Case) -> Result<Self> {
        match case.workload {
            Workload::W1r => Self::limited(case.gbit_limit),
            Workload::W1s => Self::without_segmentation(case.device_gro == Some(true)),
            _ => Ok(Self {
                namespaces: Vec::new(),
                local: [Ipv4Addr::LOCALHOST; 2],
            }),
        }
    }

    /// A loopback of its own, with a limit or without one.
    fn limited(gbit: Option<f64>) -> Result<Self> {
        let namespace = Namespace::new("lo")?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        if let Some(gbit) = gbit {
            let rate = format!("{:.0}mbit", gbit * 1e3);
            namespace.run(
                "tc",
                &[
                    "qdisc", "add", "dev", "lo", "root", "tbf", "rate", &rate, "burst", BURST,
                    "latency", LATENCY,
                ],
            )?;
        }
        Ok(Self {
            namespaces: vec![namespace],
            local: [Ipv4Addr::LOCALHOST; 2],
        })
    }

    /// A namespace for each end, and no link between them.
    pub(super) fn apart() -> Result<Self> {
        let namespaces = ENDS
            .iter()
            .map(|(name, _)| Namespace::new(name))
            .collect::<Result<_>>()?;
        Ok(Self {
            namespaces,
            local: ENDS.map(|(_, address)| address),
        })
    }

    /// A link whose server's end cannot segment, like a NIC without that feature. With `gro`, the
    /// client's end merges packets on arrival, as the drivers of most NICs do and veth by default
    /// does not.
    fn without_segmentation(gro: bool) -> Result<Self> {
        // `ip netns exec` would report its absence without saying what to do.
        run("ethtool", &["--version"])?;
        let network = Self::apart()?;
        let [server, client] = network.namespaces.as_slice() else {
            return Err(Failure::new("two namespaces"));
        };
        server.ip(&[
            "link",
            "add",
            "link0",
            "type",
            "veth",
            "peer",
            "name",
            "link0",
            "netns",
            &client.name,
        ])?;
        for (namespace, address) in network.namespaces.iter().zip(network.local) {
            let address = format!("{address}/24");
            namespace.ip(&["address", "add", &address, "dev", "link0"])?;
            namespace.ip(&["link", "set", "link0", "up"])?;
        }
        server.run(
            "ethtool",
            &["-K", "link0", "tx-udp-segmentation", "off", "tso", "off"],
        )?;
        if gro {
            client.run("ethtool", &["-K", "link0", "gro", "on"])?;
        }
        Ok(network)
    }

    /// Where the server runs, and where the client does.
    pub(super) fn ends(&self) -> [Option<&Namespace>; 2] {
        [self.namespaces.first(), self.namespaces.last()]
    }
}

/// A network namespace, removed on drop.
pub(super) struct Namespace {
    name: String,
}

impl Namespace {
    fn new(part: &str) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("squall-peers-{}-{number}-{part}", std::process::id());
        run("ip", &["netns", "add", &name])?;
        Ok(Self { name })
    }

    /// A command that starts a program there.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Its name in `ip netns`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn ip(&self, arguments: &[&str]) -> Result<()> {
        let mut all = vec!["-netns", &self.name];
        all.extend(arguments);
        run("ip", &all)
    }

    pub(super) fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let mut all = vec!["netns", "exec", &self.name, program];
        all.extend(arguments);
        run("ip", &all)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A namespace left behind is named after this process.
        let _ = run("ip", &["netns", "delete", &self.name]);
    }
}

fn run(program: &str, arguments: &[impl AsRef<OsStr>]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => Failure::new(format!(
                "{program} is not installed (peers/setup installs it on Debian)"
            )),
            _ => context(program)(error),
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words: Vec<_> = arguments
        .iter()
        .map(|one| one.as_ref().to_string_lossy())
        .collect();
    Err(Failure::new(format!(
        "{program} {}: {}",
        words.join(" "),
        said.trim()
    )))
}
