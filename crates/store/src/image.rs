//! The image: all endpoints in one flat file, for a fast start. Never the only copy.
//!
//! ```text
//!  0  magic 8 "LGIMAGE\n" · format 4 · bytes of a record 4
//! 16  store 16
//! 32  commit number 8 · its mark 8
//! 48  count of records 8 · CRC-32 of the records 4 · CRC-32 of the 60 bytes before 4
//! 64  records, 64 bytes each
//! ```
//!
//! Numbers are little-endian. The checksum is CRC-32 (`crc32fast`): it sees every flip of one bit
//! and every burst of up to 32, misses another damage once in 2³², and runs at the speed of memory.
//! A hash that withstands forgers would be slower for nothing: only this user writes the file.
//!
//! A reader believes all of a file or nothing: records are handed out after the checksum fits and
//! each of them is one that is written.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::{Change, StoreError, files, record};

const MAGIC: [u8; 8] = *b"LGIMAGE\n";
/// The format that this program writes, and the only one that it reads.
pub const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 64;
/// Bytes that are written at once.
const WRITE_BYTES: usize = 1 << 20;

/// The state of a store that an image is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The store's identity, drawn at random when it was made.
    pub store: [u8; 16],
    /// The number of the last commit in it.
    pub number: u64,
    /// The mark of that commit, drawn at random by the process that made it.
    pub mark: u64,
}

/// The reason why an image is not used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Ignored {
    /// There is none.
    #[error("there is no image")]
    Missing,
    /// It cannot be opened or read.
    #[error("{0}")]
    Unreadable(StoreError),
    /// It is no image, or its beginning is damaged.
    #[error("the file is no image")]
    NoImage,
    /// A later version of Lockgate wrote it.
    #[error("the image has format {found}, this version reads {FORMAT}")]
    Newer {
        /// Its format.
        found: u32,
    },
    /// Its header is damaged.
    #[error("the image's header is damaged")]
    Header,
    /// It is shorter or longer than its header says.
    #[error("the image has {found} bytes, and must have {expected}")]
    Length {
        /// Its length, bytes.
        found: u64,
        /// The length that the header says.
        expected: u64,
    },
    /// The checksum of its records does not fit.
    #[error("the image's records are damaged")]
    Records,
    /// The checksum fits, but a record is one that no version wrote.
    #[error("record {index} of the image is none")]
    Record {
        /// The record, from 0.
        index: usize,
    },
    /// It is of another store.
    #[error("the image is of another store")]
    OtherStore,
    /// It is of this store, but the commit of its number was another: a copy was put back.
    #[error("the image is of another history of this store, from commit {image}")]
    OtherHistory {
        /// The image's commit number.
        image: u64,
    },
    /// It is of this store, which had come further than it has now: a copy was put back.
    #[error("the image is of commit {image}, and the store has come to {store}")]
    Ahead {
        /// The image's commit number.
        image: u64,
        /// The store's.
        store: u64,
    },
    /// The log does not reach back to it.
    #[error("the image is of commit {image}, and the log begins after {oldest}")]
    TooOld {
        /// The image's commit number.
        image: u64,
        /// The lowest number that would do.
        oldest: u64,
    },
}

/// An image that is whole.
#[derive(Debug)]
pub struct Image {
    origin: Origin,
    /// Records that each decode.
    bytes: Vec<u8>,
}

impl Image {
    /// Returns the state of a store that the image is of.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Gives `each` the changes, one for each key.
    pub fn each(&self, each: &mut dyn FnMut(Change)) {
        let (records, _) = self.bytes.as_chunks::<{ record::BYTES }>();
        records.iter().filter_map(record::decode).for_each(each);
    }
}

/// Reads an image and checks all of it.
///
/// # Errors
/// The reason why it cannot be trusted.
pub fn read(path: &Path) -> Result<Image, Ignored> {
    let unreadable = |error: io::Error| Ignored::Unreadable(StoreError::system(path, &error));
    let mut file = files::open(path).map_err(Ignored::Unreadable)?.ok_or(Ignored::Missing)?;
    let found = file.metadata().map_err(unreadable)?.len();
    let mut bytes = [0; HEADER_BYTES];
    match file.read_exact(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Ignored::NoImage),
        read => read.map_err(unreadable)?,
    }
    let header = Header::decode(&bytes)?;
    let body = header.count.checked_mul(record::BYTES as u64);
    let expected = body.and_then(|body| body.checked_add(HEADER_BYTES as u64));
    let expected = expected.ok_or(Ignored::Header)?;
    if found != expected {
        return Err(Ignored::Length { found, expected });
    }
    // No more than the file really has.
    let mut bytes = Vec::with_capacity((found as usize).saturating_sub(HEADER_BYTES));
    (&mut file).take(found).read_to_end(&mut bytes).map_err(unreadable)?;
    if (bytes.len() + HEADER_BYTES) as u64 != expected {
        let found = (bytes.len() + HEADER_BYTES) as u64;
        return Err(Ignored::Length { found, expected });
    }
    if crc32fast::hash(&bytes) != header.records_crc {
        return Err(Ignored::Records);
    }
    let (records, _) = bytes.as_chunks::<{ record::BYTES }>();
    if let Some(index) = records.iter().position(|bytes| record::decode(bytes).is_none()) {
        return Err(Ignored::Record { index });
    }
    Ok(Image { origin: header.origin, bytes })
}

/// Writes an image in place of the one that is there, durable when this returns. `fill` gives its
/// argument one change for each key.
///
/// # Errors
/// [`StoreError::Full`], another error of the system, or `fill`'s own: the old image is still
/// there.
pub fn write(
    path: &Path,
    origin: Origin,
    fill: impl FnOnce(&mut dyn FnMut(Change)) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let of = |error: io::Error| StoreError::system(path, &error);
    files::replace(path, |file: &File| {
        let mut writer = BufWriter::with_capacity(WRITE_BYTES, file);
        let mut crc = crc32fast::Hasher::new();
        let mut count = 0;
        // The true header comes last: a file without it is no image.
        let mut written = writer.write_all(&[0; HEADER_BYTES]);
        fill(&mut |change| {
            if written.is_ok() {
                let bytes = record::encode(&change);
                crc.update(&bytes);
                count += 1;
                written = writer.write_all(&bytes);
            }
        })?;
        written.and_then(|()| writer.flush()).map_err(of)?;
        let header = Header { origin, count, records_crc: crc.finalize() };
        file.write_all_at(&header.encode(), 0).map_err(of)
    })
}

struct Header {
    origin: Origin,
    count: u64,
    records_crc: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&(record::BYTES as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.origin.store);
        bytes[32..40].copy_from_slice(&self.origin.number.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.origin.mark.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.count.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.records_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Ignored> {
        if bytes[0..8] != MAGIC {
            return Err(Ignored::NoImage);
        }
        // A later format keeps magic, format and the header's checksum in their places.
        if crc32fast::hash(&bytes[..60]).to_le_bytes() != bytes[60..64] {
            return Err(Ignored::Header);
        }
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        match u32_at(8) {
            FORMAT if u32_at(12) == record::BYTES as u32 => {}
            found if found > FORMAT => return Err(Ignored::Newer { found }),
            _ => return Err(Ignored::Header),
        }
        let store = std::array::from_fn(|i| bytes[16 + i]);
        let origin = Origin { store, number: u64_at(32), mark: u64_at(40) };
        Ok(Header { origin, count: u64_at(48), records_crc: u32_at(56) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::sample;
    use proptest::prelude::*;

    const ORIGIN: Origin = Origin { store: [7; 16], number: 5, mark: 9 };

    fn image(directory: &Path, count: u64) -> (std::path::PathBuf, Vec<u8>) {
        let path = directory.join("image");
        let fill = |each: &mut dyn FnMut(Change)| {
            (0..count).map(sample).for_each(each);
            Ok(())
        };
        write(&path, ORIGIN, fill).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    }

    /// Puts a file in the image's place: a new one, for the system syncs one that is made shorter.
    fn place(path: &Path, bytes: &[u8]) {
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn seal(bytes: &mut [u8]) {
        let crc = crc32fast::hash(&bytes[64..]);
        bytes[56..60].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn image_gives_back_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        for count in [0, 1, 1000] {
            let (path, _) = image(directory.path(), count);
            let image = read(&path).unwrap();
            let mut found = Vec::new();
            image.each(&mut |change| found.push(change));
            assert_eq!(image.origin(), ORIGIN);
            assert_eq!(found, (0..count).map(sample).collect::<Vec<_>>());
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn flip_of_any_bit_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let (path, bytes) = image(directory.path(), 5);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            place(&path, &flipped);
            let ignored = read(&path).err();
            let fits = match bit / 8 {
                0..8 => ignored == Some(Ignored::NoImage),
                8..64 => ignored == Some(Ignored::Header),
                _ => ignored == Some(Ignored::Records),
            };
            assert!(fits, "bit {bit}: {ignored:?}");
        }
    }

    #[test]
    fn torn_or_longer_image_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let (path, bytes) = image(directory.path(), 5);
        for length in (0..bytes.len()).chain([bytes.len() + 1, bytes.len() + 64]) {
            let mut torn = bytes.clone();
            torn.resize(length, 0);
            place(&path, &torn);
            let ignored = match length {
                0..64 => Ignored::NoImage,
                _ => Ignored::Length { found: length as u64, expected: bytes.len() as u64 },
            };
            assert_eq!(read(&path).err(), Some(ignored), "length {length}");
        }
        // As long as it should be, but a tail was never written.
        for length in 64..bytes.len() {
            let mut torn = bytes.clone();
            torn[length..].fill(0);
            place(&path, &torn);
            if torn != bytes {
                assert_eq!(read(&path).err(), Some(Ignored::Records), "length {length}");
            }
        }
    }

    #[test]
    fn newer_image_and_one_with_foreign_records_are_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let (path, bytes) = image(directory.path(), 5);
        let refuse = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = bytes.clone();
            change(&mut bytes);
            seal(&mut bytes);
            place(&path, &bytes);
            read(&path).err()
        };
        assert_eq!(refuse(&|bytes| bytes[8] = 2), Some(Ignored::Newer { found: 2 }));
        assert_eq!(refuse(&|bytes| bytes[12] = 32), Some(Ignored::Header));
        assert_eq!(refuse(&|bytes| bytes[55] = 255), Some(Ignored::Header));
        assert_eq!(refuse(&|bytes| bytes[64 * 3 + 4] = 64), Some(Ignored::Record { index: 2 }));
        assert_eq!(refuse(&|_| ()), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn hostile_image_with_sound_checksums_is_refused_or_says_one_thing(
            flips in prop::collection::vec((0..5 * 64 + 64_usize, 0..8_u8), 0..4),
            seal_it in 0..4_u8,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let (path, mut bytes) = image(directory.path(), 5);
            let before = bytes.clone();
            flips.iter().for_each(|(at, bit)| bytes[*at] ^= 1 << bit);
            if seal_it > 0 {
                seal(&mut bytes);
            }
            place(&path, &bytes);
            if let Ok(image) = read(&path) {
                prop_assert!(seal_it > 0 || bytes == before);
                let mut again = Vec::new();
                image.each(&mut |change| again.extend(record::encode(&change)));
                prop_assert_eq!(&again, &bytes[64..]);
            }
        }
    }

    #[test]
    fn link_is_not_followed_and_a_file_that_others_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let (path, _) = image(directory.path(), 1);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let code = libc::ELOOP;
        let ignored = Ignored::Unreadable(StoreError::System { path: link.clone(), code });
        assert_eq!(read(&link).err(), Some(ignored));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o622)).unwrap();
        let ignored = read(&path).err();
        assert!(
            matches!(ignored, Some(Ignored::Unreadable(StoreError::Insecure { .. }))),
            "{ignored:?}"
        );
    }

    #[test]
    fn image_that_fails_leaves_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let (path, bytes) = image(directory.path(), 5);
        let full = StoreError::Full { path: path.clone() };
        let failed = write(&path, ORIGIN, |each| {
            each(sample(1));
            Err(full.clone())
        });
        assert_eq!(failed, Err(full));
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
