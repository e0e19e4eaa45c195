//! Headers and fields as bytes.

use std::net::{IpAddr, SocketAddr};

use zeroize::Zeroizing;

use crate::handle::{CharonId, SaHandle};
use crate::{HEADER_BYTES, MAX_HANDLES, MAX_MESSAGE, MAX_NAME, VERSION};

/// First word of a message.
const MAGIC: u32 = u32::from_be_bytes(*b"LGKM");

/// An end of an SA: address and UDP port.
pub type OuterAddress = SocketAddr;

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Version of the protocol.
    pub version: u16,
    /// Kind of the message, as its number.
    pub kind: u16,
    /// Number of the request; 0: lockgated reports by itself.
    pub number: u32,
    /// The run of lockgated that it is for.
    pub incarnation: u64,
}

/// The reason why a message is refused. It shows no byte of the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// It is shorter than a header, longer than a message may be, or its length says otherwise.
    #[error("a message of {0} bytes")]
    Length(usize),
    /// It does not begin as a message does.
    #[error("no message of the plugin")]
    Magic,
    /// Another version of the protocol.
    #[error(
        "lockgated {release} speaks version {VERSION} of the protocol, and this plugin version \
         {0}: install lockgate-charon of release {release}, then restart charon",
        release = env!("CARGO_PKG_VERSION")
    )]
    Version(u16),
    /// An unknown kind of message.
    #[error("unknown kind of message {0}")]
    Kind(u16),
    /// A field ends behind the message.
    #[error("a field that is cut off")]
    Cut,
    /// A field that this kind of message does not have, or that it has already.
    #[error("field {0} that does not belong there")]
    Field(u16),
    /// A field is missing.
    #[error("field {0} is missing")]
    Missing(u16),
    /// The value of a field makes no sense.
    #[error("a value of field {0} that makes no sense")]
    Value(u16),
}

impl Malformed {
    /// Returns the header of a message that is refused, as far as an answer needs it: whatever
    /// version it has.
    pub fn header_of(bytes: &[u8]) -> Option<Header> {
        let word = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let (version, kind) = (half(4)?, half(6)?);
        let incarnation = u64::from_be_bytes(bytes.get(16..24)?.try_into().ok()?);
        (word(0)? == MAGIC).then_some(Header { version, kind, number: word(8)?, incarnation })
    }
}

/// Reads the header of a message, and returns its fields.
pub(crate) fn header(bytes: &[u8]) -> Result<(Header, Fields<'_>), Malformed> {
    let wrong_length = Malformed::Length(bytes.len());
    if bytes.len() < HEADER_BYTES || bytes.len() > MAX_MESSAGE {
        return Err(wrong_length);
    }
    let header = Malformed::header_of(bytes).ok_or(Malformed::Magic)?;
    if header.version != VERSION {
        return Err(Malformed::Version(header.version));
    }
    let length = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    if length as usize != bytes.len() {
        return Err(wrong_length);
    }
    Ok((header, Fields(&bytes[HEADER_BYTES..])))
}

/// The fields of a message that are left, in their order.
pub(crate) struct Fields<'m>(&'m [u8]);

impl<'m> Iterator for Fields<'m> {
    type Item = Result<Field<'m>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let cut = |fields: &mut Fields<'m>| {
            fields.0 = &[];
            Some(Err(Malformed::Cut))
        };
        let Some((head, rest)) = self.0.split_first_chunk::<4>() else { return cut(self) };
        let [name, length] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_be_bytes);
        let Some((value, rest)) = rest.split_at_checked(length.into()) else { return cut(self) };
        self.0 = rest;
        Some(Ok(Field { name, value }))
    }
}

/// One field.
#[derive(Clone, Copy)]
pub(crate) struct Field<'m> {
    pub(crate) name: u16,
    pub(crate) value: &'m [u8],
}

impl Field<'_> {
    /// Returns that its value makes no sense.
    pub(crate) fn wrong(&self) -> Malformed {
        Malformed::Value(self.name)
    }

    fn array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.value.try_into().map_err(|_| self.wrong())
    }

    pub(crate) fn u8(&self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    /// 0 or 1.
    pub(crate) fn flag(&self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.wrong()),
        }
    }

    pub(crate) fn u16(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// A handle.
    pub(crate) fn handle(&self) -> Result<SaHandle, Malformed> {
        SaHandle::new(u64::from_be_bytes(self.array()?)).ok_or_else(|| self.wrong())
    }

    /// 1 to [`MAX_HANDLES`] handles.
    pub(crate) fn handles(&self) -> Result<Vec<SaHandle>, Malformed> {
        let (handles, rest) = self.value.as_chunks::<8>();
        if !rest.is_empty() || !(1..=MAX_HANDLES).contains(&handles.len()) {
            return Err(self.wrong());
        }
        let handle = |bytes: &[u8; 8]| SaHandle::new(u64::from_be_bytes(*bytes));
        handles.iter().map(|bytes| handle(bytes).ok_or_else(|| self.wrong())).collect()
    }

    /// The number that identifies a charon.
    pub(crate) fn charon_id(&self) -> Result<CharonId, Malformed> {
        self.array().map(CharonId)
    }

    /// Three numbers of 64 bits.
    pub(crate) fn three(&self) -> Result<[u64; 3], Malformed> {
        let bytes: [u8; 24] = self.array()?;
        let of = |place: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * place..8 * place + 8]);
            u64::from_be_bytes(word)
        };
        Ok([of(0), of(1), of(2)])
    }

    /// A text of at most 512 bytes without control characters.
    pub(crate) fn text(&self) -> Result<String, Malformed> {
        let text = std::str::from_utf8(self.value).map_err(|_| self.wrong())?;
        let is_good = text.len() <= 512 && !text.chars().any(char::is_control);
        is_good.then(|| text.to_owned()).ok_or_else(|| self.wrong())
    }

    /// A name of charon's configuration: 1 to [`MAX_NAME`] characters of printable ASCII.
    pub(crate) fn name(&self) -> Result<String, Malformed> {
        let is_good = (1..=MAX_NAME).contains(&self.value.len())
            && self.value.iter().all(|byte| matches!(byte, b' '..=b'~'));
        match is_good {
            true => self.text(),
            false => Err(self.wrong()),
        }
    }

    /// Address and port.
    pub(crate) fn outer(&self) -> Result<OuterAddress, Malformed> {
        let (address, port) = self.value.split_last_chunk::<2>().ok_or_else(|| self.wrong())?;
        let address = ip_address(address).ok_or_else(|| self.wrong())?;
        Ok(SocketAddr::new(address, u16::from_be_bytes(*port)))
    }
}

/// An address of 4 or 16 bytes.
pub(crate) fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// Writes an address as its bytes.
pub(crate) fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => out.extend(address.octets()),
        IpAddr::V6(address) => out.extend(address.octets()),
    }
}

/// A message in the making. Its bytes are wiped when it is let go of; they lie where they are from
/// the start, so that none stay behind.
pub(crate) struct Writer(Zeroizing<Vec<u8>>);

impl Writer {
    pub(crate) fn new(Header { version, kind, number, incarnation }: Header) -> Writer {
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_MESSAGE));
        bytes.extend(MAGIC.to_be_bytes());
        bytes.extend(version.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(number.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(incarnation.to_be_bytes());
        Writer(bytes)
    }

    /// Adds a field.
    ///
    /// # Panics
    /// If the message grows beyond [`MAX_MESSAGE`].
    pub(crate) fn put(&mut self, name: u16, value: &[u8]) {
        assert!(self.0.len() + 4 + value.len() <= MAX_MESSAGE, "a message that is too long");
        self.0.extend(name.to_be_bytes());
        self.0.extend((value.len() as u16).to_be_bytes());
        self.0.extend(value);
    }

    pub(crate) fn put_outer(&mut self, name: u16, address: OuterAddress) {
        let mut value = Vec::with_capacity(18);
        put_address(&mut value, address.ip());
        value.extend(address.port().to_be_bytes());
        self.put(name, &value);
    }

    pub(crate) fn put_handle(&mut self, handle: SaHandle) {
        self.put(name::HANDLE, &handle.value().to_be_bytes());
    }

    /// Adds a field of handles; without handles, no field.
    ///
    /// # Panics
    /// With more than [`MAX_HANDLES`].
    pub(crate) fn put_handles(&mut self, handles: &[SaHandle]) {
        assert!(handles.len() <= MAX_HANDLES, "too many handles");
        if !handles.is_empty() {
            let bytes: Vec<u8> =
                handles.iter().flat_map(|handle| handle.value().to_be_bytes()).collect();
            self.put(name::HANDLES, &bytes);
        }
    }

    pub(crate) fn put_three(&mut self, name: u16, numbers: [u64; 3]) {
        self.put(name, numbers.map(u64::to_be_bytes).as_flattened());
    }

    pub(crate) fn finish(mut self) -> Zeroizing<Vec<u8>> {
        let length = self.0.len() as u32;
        self.0[12..16].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// Numbers of the fields (`enum lg_field` of `protocol.h`).
pub(crate) mod name {
    pub(crate) const STATUS: u16 = 1;
    pub(crate) const TEXT: u16 = 2;
    pub(crate) const CHARON: u16 = 3;
    pub(crate) const PLUGIN: u16 = 4;
    pub(crate) const SOURCE: u16 = 5;
    pub(crate) const DESTINATION: u16 = 6;
    pub(crate) const SPI: u16 = 7;
    pub(crate) const REQID: u16 = 8;
    pub(crate) const MODE: u16 = 9;
    pub(crate) const DIRECTION: u16 = 10;
    pub(crate) const ENCRYPTION: u16 = 11;
    pub(crate) const KEY: u16 = 12;
    pub(crate) const INTEGRITY: u16 = 13;
    pub(crate) const INTEGRITY_KEY: u16 = 14;
    pub(crate) const ESN: u16 = 15;
    pub(crate) const WINDOW: u16 = 16;
    pub(crate) const ENCAPSULATION: u16 = 17;
    pub(crate) const SOFT: u16 = 18;
    pub(crate) const HARD: u16 = 19;
    pub(crate) const SOURCE_SELECTOR: u16 = 20;
    pub(crate) const DESTINATION_SELECTOR: u16 = 21;
    pub(crate) const INITIATOR: u16 = 22;
    pub(crate) const REPEAT: u16 = 23;
    pub(crate) const NEW_SOURCE: u16 = 24;
    pub(crate) const NEW_DESTINATION: u16 = 25;
    pub(crate) const USE: u16 = 26;
    pub(crate) const ACTION: u16 = 27;
    pub(crate) const PRIORITY: u16 = 28;
    pub(crate) const HARDNESS: u16 = 29;
    pub(crate) const IKE: u16 = 30;
    pub(crate) const CHILD: u16 = 31;
    pub(crate) const HANDLE: u16 = 32;
    pub(crate) const HANDLES: u16 = 33;
    pub(crate) const CHARON_ID: u16 = 34;
}
