//! The log of a build without the feature `qlog`: none can be made, so none is ever called.

use squall_wire::{ConnectionId, PacketType, Path, TransportParameters};

use super::{Metrics, Packet};
use crate::error::CloseReason;
use crate::time::Time;

/// No connection has one.
#[derive(Debug)]
pub(crate) enum Qlog {}

impl Qlog {
    pub(crate) fn path(&mut self, _: Time, _: Path, _: &ConnectionId, _: u16) {
        match *self {}
    }

    pub(crate) fn connection_closed(&mut self, _: Time, _: &CloseReason) {
        match *self {}
    }

    pub(crate) fn chosen_version(&mut self, _: Time, _: u32) {
        match *self {}
    }

    pub(crate) fn version_negotiation(&mut self, _: Time, _: &[u8], _: Option<u32>) {
        match *self {}
    }

    pub(crate) fn retry(&mut self, _: Time, _: &ConnectionId, _: &[u8]) {
        match *self {}
    }

    pub(crate) fn alpn_information(&mut self, _: Time, _: Option<&[u8]>) {
        match *self {}
    }

    pub(crate) fn parameters_set(&mut self, _: Time, _: &str, _: &TransportParameters) {
        match *self {}
    }

    pub(crate) fn state(&mut self, _: Time, _: &str) {
        match *self {}
    }

    pub(crate) fn packet_sent(&mut self, _: Time, _: Packet<'_>, _: bool) {
        match *self {}
    }

    pub(crate) fn packet_received(&mut self, _: Time, _: Packet<'_>) {
        match *self {}
    }

    pub(crate) fn packet_dropped(&mut self, _: Time, _: PacketType, _: usize, _: &str) {
        match *self {}
    }

    pub(crate) fn packet_lost(&mut self, _: Time, _: PacketType, _: u64, _: bool) {
        match *self {}
    }

    pub(crate) fn metrics_updated(&mut self, _: Time, _: Metrics) {
        match *self {}
    }

    pub(crate) fn key_updated(&mut self, _: Time, _: bool, _: u64) {
        match *self {}
    }
}
