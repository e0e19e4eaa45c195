//! Mistakes in members of set files, without a word of the file.

use policy::SelectorError;

/// Kind of mistake in a member of a set file. Holds nothing of the file's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemberMistake {
    /// Neither an address nor a prefix nor a range.
    #[error(
        "this member is not an address: write a prefix (10.0.0.0/8), a range \
         (10.2.0.0-10.2.0.9) or a single address"
    )]
    NotAnAddress,
    /// The text behind `/` is no number, or more bits than the address has.
    #[error("the prefix length of this member must be a number from 0 to {bits}")]
    PrefixLength {
        /// Bits of the address.
        bits: u8,
    },
    /// A prefix with bits set behind its length.
    #[error("this member has bits set behind the prefix length: write the network's address")]
    HostBits,
    /// The ends of a range are of two families.
    #[error("this range mixes IPv4 and IPv6: write one range for each")]
    MixedFamilies,
    /// The first address is above the second.
    #[error("this range is inverted: write the lower address first")]
    Inverted,
}

impl From<SelectorError> for MemberMistake {
    fn from(error: SelectorError) -> MemberMistake {
        match error {
            SelectorError::PrefixLength { bits, .. } => MemberMistake::PrefixLength { bits },
            SelectorError::HostBits { .. } => MemberMistake::HostBits,
            SelectorError::MixedFamilies { .. } => MemberMistake::MixedFamilies,
            SelectorError::InvertedAddresses { .. } => MemberMistake::Inverted,
            _ => MemberMistake::NotAnAddress,
        }
    }
}
