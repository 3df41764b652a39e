//! The network devices that carry traffic, and what they do for bundles of datagrams.
//!
//! ```text
//!   /proc/net/dev   which devices have moved bytes  ─►  ethtool's call  ─►  features of each
//! ```
//! What a device cannot do, the kernel does in software, on the sender's or the receiver's core.

use std::fmt;

use serde::Serialize;
use squall_yard::sys;

/// The most devices shown: a container host has hundreds.
const MAX_DEVICES: usize = 8;

/// A device and its features.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Device {
    name: String,
    /// Bytes moved in both directions since it exists.
    bytes: u64,
    /// Splits bundles into datagrams (`tx-udp-segmentation`); `None`: unknown.
    udp_segmentation: Option<bool>,
    /// Merges arriving packets (`rx-gro`); datagrams only for sockets that ask for it.
    gro: Option<bool>,
    /// Makes bundles of what it forwards (`rx-udp-gro-forwarding`).
    udp_gro_forwarding: Option<bool>,
    /// Computes the checksums of sent packets (one of `tx-checksum-ip*`).
    tx_checksum: Option<bool>,
    /// Verifies the checksums of received packets (`rx-checksum`).
    rx_checksum: Option<bool>,
    /// Why the features are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
    /// What the absent features cost.
    costs: Vec<&'static str>,
    /// A command for each of them.
    mend: Vec<String>,
}

/// The devices that have moved bytes, busiest first.
pub(super) fn read() -> Vec<Device> {
    // Not /sys/class/net, which may be another network namespace's.
    let table = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let mut names = busy(&table);
    names.truncate(MAX_DEVICES);
    let forwards = forwards();
    let devices = names.into_iter().map(|(bytes, name)| {
        let features = sys::device_features(&name);
        match features {
            Ok(features) => Device::new(name, bytes, &features, forwards),
            Err(error) => Device {
                unknown: Some(format!("the kernel does not report it: {error}")),
                ..Device::new(name, bytes, &[], forwards)
            },
        }
    });
    devices.collect()
}

/// Whether the machine forwards packets, as a container host does.
fn forwards() -> bool {
    ["ipv4/ip_forward", "ipv6/conf/all/forwarding"]
        .iter()
        .filter_map(|name| std::fs::read_to_string(format!("/proc/sys/net/{name}")).ok())
        .any(|value| value.trim() != "0")
}

/// Bytes and names of the devices that have moved any, busiest first, from the kernel's table: two
/// lines of headings, then a name and sixteen counts, bytes received first and bytes sent ninth.
fn busy(table: &str) -> Vec<(u64, String)> {
    let devices = table.lines().skip(2).filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<&str> = counts.split_whitespace().collect();
        let bytes = |at: usize| counts.get(at)?.parse::<u64>().ok();
        Some((bytes(0)?.saturating_add(bytes(8)?), name.trim().to_owned()))
    });
    let mut devices: Vec<_> = devices.filter(|(bytes, _)| *bytes > 0).collect();
    devices.sort_by(|a, b| b.cmp(a));
    devices
}

impl Device {
    /// From the features by their names in ethtool, on a machine that forwards packets or does not.
    fn new(name: String, bytes: u64, features: &[(String, bool)], forwards: bool) -> Self {
        let has = |wanted: &str| {
            let mut named = features.iter().filter(|(name, _)| name.starts_with(wanted));
            let first = named.next()?.1;
            Some(named.fold(first, |any, (_, active)| any || *active))
        };
        let mut device = Self {
            udp_segmentation: has("tx-udp-segmentation"),
            gro: (features.iter().find(|(name, _)| name == "rx-gro")).map(|(_, active)| *active),
            udp_gro_forwarding: has("rx-udp-gro-forwarding"),
            tx_checksum: has("tx-checksum-ip"),
            rx_checksum: has("rx-checksum"),
            name,
            bytes,
            unknown: None,
            costs: Vec::new(),
            mend: Vec::new(),
        };
        // Over loopback, bundles arrive as they were sent.
        let is_loopback = device.name == "lo";
        for (active, feature, cost) in [
            (
                device.udp_segmentation,
                "tx-udp-segmentation",
                NO_SEGMENTATION,
            ),
            (device.gro.filter(|_| !is_loopback), "gro", NO_GRO),
            (device.tx_checksum, "tx", NO_TX_CHECKSUM),
            (device.rx_checksum, "rx", NO_RX_CHECKSUM),
            (
                // It is off by default, and useless to an endpoint of a connection.
                device
                    .udp_gro_forwarding
                    .filter(|_| forwards && !is_loopback),
                "gro on rx-udp-gro-forwarding",
                NO_GRO_FORWARDING,
            ),
        ] {
            if active == Some(false) {
                device.costs.push(cost);
                let command = format!("ethtool -K {} {feature} on, if the driver can", device.name);
                device.mend.push(command);
            }
        }
        device
    }
}

// Measured with the feature and without it: docs/figures/2026-11-25-amd-zen4.md, and for GRO
// 2026-11-26-amd-zen5.md.
const NO_SEGMENTATION: &str = "without UDP segmentation, the kernel splits each bundle before the device: a server takes 1.2 CPU-s/GB instead of 0.35, and UDP send 1,460 ns per packet instead of 301 (veth, AMD Zen 4)";
const NO_GRO: &str = "without GRO, datagrams that the sender or the network has split arrive one by one: a client takes 0.58 CPU-s/GB instead of 0.19 (veth, AMD Zen 5); bundles that arrive whole, as between containers of one host, lose nothing";
const NO_TX_CHECKSUM: &str = "without transmit checksum offload, the kernel reads every byte once more, and splits each bundle before the device: a server takes 1.3 CPU-s/GB instead of 0.35 (veth, AMD Zen 4)";
const NO_RX_CHECKSUM: &str = "without receive checksum offload, the kernel reads every byte once more: both ends take 0.74 CPU-s/GB instead of 0.60 (veth, AMD Zen 4)";
const NO_GRO_FORWARDING: &str = "this machine forwards packets, and without UDP GRO forwarding it passes datagrams on one by one: a machine with both ends and the router takes 2.9 CPU-s/GB instead of 1.4 (veth, AMD Zen 4)";

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.unknown {
            return writeln!(f, "  {}: unknown ({why})", self.name);
        }
        let said = |active| match active {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        writeln!(
            f,
            "  {}: UDP segmentation {}, GRO {}, UDP GRO forwarding {}, checksum offload: transmit {}, receive {}",
            self.name,
            said(self.udp_segmentation),
            said(self.gro),
            said(self.udp_gro_forwarding),
            said(self.tx_checksum),
            said(self.rx_checksum)
        )?;
        for cost in &self.costs {
            writeln!(f, "  cost     {cost}")?;
        }
        for mend in &self.mend {
            writeln!(f, "  fix      {mend}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(features: &[(&str, bool)]) -> Device {
        named("veth0", features, false)
    }

    fn named(name: &str, features: &[(&str, bool)], forwards: bool) -> Device {
        let features: Vec<_> = (features.iter())
            .map(|(name, active)| ((*name).to_owned(), *active))
            .collect();
        Device::new(name.to_owned(), 1, &features, forwards)
    }

    #[test]
    fn a_missing_feature_is_reported_with_its_cost_and_the_command_to_enable_it() {
        let whole = device(&[
            ("tx-checksum-ipv4", false),
            ("tx-checksum-ip-generic", true),
            ("tx-udp-segmentation", true),
            ("rx-udp-gro-forwarding", false),
            ("rx-checksum", true),
        ]);
        assert_eq!((whole.tx_checksum, whole.costs.len()), (Some(true), 0));
        assert_eq!(whole.udp_gro_forwarding, Some(false));
        let slow = device(&[
            ("tx-udp-segmentation", false),
            ("tx-checksum-ip-generic", false),
        ]);
        let text = slow.to_string();
        assert!(
            text.contains("1.2 CPU-s/GB instead of 0.35")
                && text.contains("ethtool -K veth0 tx-udp-segmentation on")
                && text.contains("receive unknown"),
            "{text}"
        );
        assert_eq!((slow.costs.len(), slow.mend.len()), (2, 2));
    }

    #[test]
    fn forwarding_without_gro_is_reported_only_on_machines_that_forward() {
        let cost = |name, active, forwards| {
            let features = [("rx-udp-gro-forwarding", active)];
            named(name, &features, forwards).to_string()
        };
        let command = "ethtool -K veth0 gro on rx-udp-gro-forwarding on";
        assert!(cost("veth0", false, true).contains(command));
        for (name, active, forwards) in [
            ("veth0", false, false),
            ("veth0", true, true),
            ("lo", false, true),
        ] {
            let text = cost(name, active, forwards);
            assert!(!text.contains("ethtool"), "{text}");
        }
    }

    #[test]
    fn only_loopback_can_do_without_gro() {
        let features = [("rx-gro", false), ("rx-gro-list", true)];
        let text = named("veth0", &features, false).to_string();
        assert!(text.contains("ethtool -K veth0 gro on, if"), "{text}");
        let text = named("lo", &features, false).to_string();
        assert!(
            text.contains("GRO no") && !text.contains("ethtool"),
            "{text}"
        );
    }

    #[test]
    fn devices_are_sorted_by_traffic_and_idle_ones_are_omitted() {
        let table = "Inter-|   Receive                            |  Transmit\n \
            face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed\n    \
            lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n  \
            eth0:300 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n  \
            sit0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(
            busy(table),
            [(305, "eth0".to_owned()), (20, "lo".to_owned())]
        );
        assert_eq!(busy(""), []);
    }

    #[test]
    fn a_device_that_reports_nothing_is_not_called_slow() {
        let silent = Device {
            unknown: Some("the kernel does not report it: no".to_owned()),
            ..device(&[])
        };
        assert!(silent.costs.is_empty());
        assert_eq!(
            silent.to_string(),
            "  veth0: unknown (the kernel does not report it: no)\n"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_missing_device_is_an_error() {
        assert!(sys::device_features("nowhere0").is_err());
        assert!(sys::device_features("a-name-that-no-device-has-room-for").is_err());
    }
}
