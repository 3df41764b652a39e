//! The counters of an endpoint.

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How an endpoint handled datagrams that belong to no connection, since it was created.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct EndpointCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl EndpointCounts {
            /// The difference from `before`, an earlier state of the same endpoint.
            #[must_use]
            pub const fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)* }
            }
        }

        impl std::ops::AddAssign for EndpointCounts {
            /// The sum over several endpoints.
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Version Negotiation packets sent (RFC 9000 §6.1).
    version_negotiations,
    /// Version Negotiation packets not sent: their budget, or the share of a source prefix, was
    /// used up.
    version_negotiations_withheld,
    /// Stateless resets sent (RFC 9000 §10.3).
    stateless_resets,
    /// Stateless resets not sent: their budget, or the share of a source prefix, was used up.
    stateless_resets_withheld,
    /// Attempts answered with a CONNECTION_CLOSE, by decision of the endpoint or of the
    /// application.
    refusals,
    /// Refusals not sent: their budget, or the share of a source prefix, was used up.
    refusals_withheld,
    /// Attempts dropped without an answer because too many others were in progress, some of which
    /// were accepted or completed recently. Their clients retry.
    attempts_dropped,
    /// Retry packets sent (RFC 9000 §8.1.2), for any reason.
    retries,
    /// Attempts that a NEW_TOKEN token validated (RFC 9000 §8.1.3).
    tokens_spent,
    /// Attempts with a good NEW_TOKEN token that counts as spent: answered with a Retry.
    tokens_replayed,
    /// Attempts answered with a Retry because their source prefix has its share of connections.
    prefix_retries,
    /// Attempts and handshakes from validated addresses that were refused for the same reason.
    prefix_refusals,
    /// Attempts answered with a Retry because connections use most of the memory limit.
    memory_retries,
    /// Attempts from validated addresses that were refused because connections use the whole memory
    /// limit.
    memory_refusals,
}
