//! What `squall doctor` finds out about the network; it reads from the kernel and changes nothing.
//!
//! ```text
//!   Offload    what a socket of ours can bundle              squall-udp's own probes
//!   Buffers    what the kernel grants a socket               against what squall asks for
//!   Device     what devices do for bundles                  `devices`
//!   Qdisc      what spaces packets on the way out             route table, then `tc`
//!   Drops      datagrams that found a buffer full            /proc/net/snmp
//! ```
//! Each finding says what it is worth, and where that was measured.

use std::fmt;
use std::net::Ipv4Addr;
use std::process::Command;

use serde::Serialize;
use squall_udp::{Options, Socket};

use super::devices::{self, Device};

/// UDP GSO and GRO.
#[derive(Debug, Serialize)]
pub(crate) struct Offload {
    /// Datagrams that one message may carry out; 1: no GSO.
    gso_segments: usize,
    gro: bool,
    worth: &'static str,
    /// What to do if something is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<&'static str>,
}

/// Socket buffers in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Buffers {
    receive_wanted: usize,
    receive_granted: usize,
    send_wanted: usize,
    send_granted: usize,
    worth: &'static str,
    /// A command for each buffer that is too small.
    mend: Vec<String>,
}

/// The queueing discipline towards the default route.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Qdisc {
    /// `None`: there is no default route, or it cannot be seen.
    device: Option<String>,
    /// `None`: unknown.
    name: Option<String>,
    fq: Option<bool>,
    worth: &'static str,
}

/// Datagrams lost in this machine since it started (this network namespace), of all programs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Drops {
    /// Because a receive buffer was full (`RcvbufErrors`); `None`: unknown.
    receive_buffer: Option<u64>,
    /// Because a send buffer was full (`SndbufErrors`); `None`: unknown.
    send_buffer: Option<u64>,
    received: Option<u64>,
    worth: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<&'static str>,
}

/// All findings.
#[derive(Debug, Serialize)]
pub(crate) struct Network {
    /// Absent if no UDP socket can be opened.
    #[serde(flatten)]
    socket: Option<SocketFindings>,
    devices: Vec<Device>,
    qdisc: Qdisc,
    drops: Drops,
}

/// The findings of one of our sockets.
#[derive(Debug, Serialize)]
struct SocketFindings {
    offload: Offload,
    buffers: Buffers,
}

impl Network {
    /// Collects all findings.
    pub(crate) fn read() -> Self {
        let options = Options::default();
        let socket = Socket::bind((Ipv4Addr::LOCALHOST, 0).into(), &options);
        let limits = socket.map(|socket| socket.limits()).ok();
        let file = |path| std::fs::read_to_string(path).unwrap_or_default();
        let device = default_device(&file("/proc/net/route"));
        let name = device.as_deref().and_then(discipline_of);
        Self {
            socket: limits.map(|limits| SocketFindings {
                offload: Offload::new(limits.gso_segments, limits.gro),
                buffers: Buffers::new(&options, limits.receive_buffer, limits.send_buffer),
            }),
            devices: devices::read(),
            qdisc: Qdisc::new(device, name),
            drops: Drops::new(&file("/proc/net/snmp")),
        }
    }
}

impl Offload {
    fn new(gso_segments: usize, gro: bool) -> Self {
        let mend = (gso_segments <= 1 || !gro).then_some(
            "use Linux 5.0 or newer (GSO 4.18, GRO 5.0), outside sandboxes that hide the socket options",
        );
        Self {
            gso_segments,
            gro,
            worth: WORTH_OFFLOAD,
            mend,
        }
    }
}

impl Buffers {
    fn new(options: &Options, receive_granted: usize, send_granted: usize) -> Self {
        let mut mend = Vec::new();
        for (name, wanted, granted) in [
            ("rmem_max", options.receive_buffer, receive_granted),
            ("wmem_max", options.send_buffer, send_granted),
        ] {
            if granted < wanted {
                mend.push(format!("sysctl -w net.core.{name}={wanted}"));
            }
        }
        Self {
            receive_wanted: options.receive_buffer,
            receive_granted,
            send_wanted: options.send_buffer,
            send_granted,
            worth: WORTH_BUFFERS,
            mend,
        }
    }
}

impl Qdisc {
    fn new(device: Option<String>, name: Option<String>) -> Self {
        let fq = name.as_deref().map(|name| name == "fq");
        Self {
            device,
            name,
            fq,
            worth: WORTH_FQ,
        }
    }
}

impl Drops {
    /// From the kernel's table: a line of names, then a line of figures.
    fn new(snmp: &str) -> Self {
        let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp:"));
        let (names, figures) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
        let of = |wanted: &str| {
            let mut pairs = names.split_whitespace().zip(figures.split_whitespace());
            let found = pairs.find(|pair| pair.0 == wanted)?;
            found.1.parse().ok()
        };
        let (receive_buffer, send_buffer) = (of("RcvbufErrors"), of("SndbufErrors"));
        let some = receive_buffer.unwrap_or(0) + send_buffer.unwrap_or(0) > 0;
        Self {
            receive_buffer,
            send_buffer,
            received: of("InDatagrams"),
            worth: WORTH_DROPS,
            mend: some.then_some(
                "if it grows under your load, use larger buffers (above) or more workers",
            ),
        }
    }
}

/// The device of the default route, from the kernel's table of IPv4 routes: the one with the lowest
/// metric.
fn default_device(routes: &str) -> Option<String> {
    let routes = routes.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [device, destination, _, _, _, _, metric, mask, ..] = fields[..] else {
            return None;
        };
        let metric: u32 = metric.parse().ok()?;
        (destination == "00000000" && mask == "00000000").then(|| (metric, device.to_owned()))
    });
    routes.min().map(|route| route.1)
}

/// The root discipline of a device, as reported by `tc`, if that is installed.
fn discipline_of(device: &str) -> Option<String> {
    let output = Command::new("tc")
        .args(["qdisc", "show", "dev", device])
        .output()
        .ok()?;
    root_discipline(&String::from_utf8_lossy(&output.stdout))
}

/// From the output of `tc qdisc show`: the root, or, under `mq`, that of its queues.
fn root_discipline(text: &str) -> Option<String> {
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let lines: Vec<Vec<&str>> = lines
        .filter(|words| words.first() == Some(&"qdisc"))
        .collect();
    let root = lines.iter().find(|words| words.get(3) == Some(&"root"))?;
    let name = *root.get(1)?;
    let below = lines.iter().find(|words| words.get(3) == Some(&"parent"));
    let name = match (name, below.and_then(|words| words.get(1))) {
        ("mq", Some(below)) => below,
        _ => name,
    };
    Some(name.to_owned())
}

// Figures are those of docs/figures/2026-11-21-amd-zen3.md, "What the network's settings are
// worth", or follow from them.
const WORTH_OFFLOAD: &str = "135 ns of CPU to send a datagram of 1,450 bytes in a bundle of 44, 1,970 ns alone (measured, AMD Zen 3)";
const WORTH_BUFFERS: &str = "at 10 Gbit/s, 4 MiB hold 3.4 ms of payload and Linux's usual 208 KiB 0.17 ms; datagrams beyond that are lost (arithmetic)";
const WORTH_FQ: &str = "no figure: squall paces its bundles itself and does not hand departure times to fq (`squall perf --no-pacing` shows what pacing costs)";
const WORTH_DROPS: &str = "a loss costs a retransmission and reduces the congestion window by 30 % (CUBIC, RFC 9438 §4.6) or by half (NewReno, RFC 9002 §7.3.2)";

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = || "unknown".to_owned();
        writeln!(f, "UDP in bundles")?;
        match &self.socket {
            None => writeln!(f, "  cannot open a UDP socket on loopback: unknown")?,
            Some(SocketFindings { offload, buffers }) => {
                match offload.gso_segments {
                    0 | 1 => writeln!(f, "  GSO      no")?,
                    segments => writeln!(f, "  GSO      {segments} datagrams per message")?,
                }
                writeln!(f, "  GRO      {}", if offload.gro { "yes" } else { "no" })?;
                tell(f, offload.worth, offload.mend)?;
                writeln!(f, "\nSocket buffers")?;
                for (name, granted, wanted) in [
                    ("receive", buffers.receive_granted, buffers.receive_wanted),
                    ("send", buffers.send_granted, buffers.send_wanted),
                ] {
                    writeln!(f, "  {name:<9}{granted} bytes of {wanted} requested")?;
                }
                tell(f, buffers.worth, buffers.mend.iter().map(String::as_str))?;
            }
        }
        writeln!(f, "\nNetwork devices that have carried traffic")?;
        if self.devices.is_empty() {
            writeln!(f, "  none")?;
        }
        for device in &self.devices {
            write!(f, "{device}")?;
        }
        let qdisc = &self.qdisc;
        writeln!(f, "\nQueueing discipline")?;
        writeln!(
            f,
            "  {} on {}, the device of the default route",
            qdisc.name.clone().unwrap_or_else(unknown),
            qdisc.device.clone().unwrap_or_else(unknown)
        )?;
        tell(f, qdisc.worth, None)?;
        let drops = &self.drops;
        let number = |count: Option<u64>| count.map_or_else(unknown, |count| count.to_string());
        writeln!(f, "\nUDP drops of all programs since boot")?;
        writeln!(
            f,
            "  receive  {} dropped for lack of buffer space, {} received",
            number(drops.receive_buffer),
            number(drops.received)
        )?;
        writeln!(
            f,
            "  send     {} dropped for lack of buffer space",
            number(drops.send_buffer)
        )?;
        tell(f, drops.worth, drops.mend)
    }
}

/// Says what a finding is worth, and what to do about it.
fn tell<'a>(
    f: &mut fmt::Formatter<'_>,
    worth: &str,
    mend: impl IntoIterator<Item = &'a str>,
) -> fmt::Result {
    writeln!(f, "  worth    {worth}")?;
    for mend in mend {
        writeln!(f, "  fix      {mend}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
        wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
        eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
        eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";

    #[test]
    fn the_default_route_with_the_lowest_metric_wins() {
        assert_eq!(default_device(ROUTES).as_deref(), Some("eth0"));
        let without: String = ROUTES
            .lines()
            .filter(|line| !line.contains("\t00000000\t01"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(default_device(&without), None);
        assert_eq!(default_device(""), None);
    }

    #[test]
    fn the_root_discipline_is_found_below_mq_too() {
        let of = |text| root_discipline(text);
        assert_eq!(
            of("qdisc fq 8001: root refcnt 2 limit 10000p").as_deref(),
            Some("fq")
        );
        assert_eq!(
            of("qdisc mq 0: root\nqdisc fq_codel 0: parent :2 limit 10240p\nqdisc fq_codel 0: parent :1").as_deref(),
            Some("fq_codel")
        );
        assert_eq!(of("Cannot find device \"eth9\""), None);
    }

    #[test]
    fn unknown_values_are_not_reported_as_wrong() {
        let of = |name: Option<&str>| Qdisc::new(Some("eth0".to_owned()), name.map(str::to_owned));
        assert_eq!(of(Some("fq")).fq, Some(true));
        assert_eq!(of(Some("pfifo_fast")).fq, Some(false));
        assert_eq!(of(None).fq, None);
    }

    #[test]
    fn drops_are_read_by_name_and_udplite_is_not_udp() {
        let snmp = "Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\n\
            Udp: 1000 3 40 900 41 2\n\
            UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\n\
            UdpLite: 7 7 7 7 7 7\n";
        let drops = Drops::new(snmp);
        assert_eq!(
            (drops.receive_buffer, drops.send_buffer, drops.received),
            (Some(41), Some(2), Some(1000))
        );
        assert!(drops.mend.is_some());
        let none = Drops::new("");
        assert_eq!((none.receive_buffer, none.mend), (None, None));
    }

    #[test]
    fn small_buffers_are_reported_with_the_sysctl_that_enlarges_them() {
        let options = Options::default();
        assert!(
            Buffers::new(&options, options.receive_buffer, options.send_buffer)
                .mend
                .is_empty()
        );
        let small = Buffers::new(&options, 212_992, options.send_buffer);
        assert_eq!(
            small.mend,
            [format!(
                "sysctl -w net.core.rmem_max={}",
                options.receive_buffer
            )]
        );
    }

    #[test]
    fn missing_bundles_are_reported() {
        assert!(Offload::new(64, true).mend.is_none());
        assert!(Offload::new(1, true).mend.is_some() && Offload::new(64, false).mend.is_some());
    }
}
