//! Descriptors of memory: creation, and the check of a descriptor from outside.

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};

/// `f_type` of memory from `memfd_secret` (`SECRETMEM_MAGIC` in linux/magic.h).
const SECRET_MEMORY_TYPE: u64 = 0x5345_434d;
/// The header line of a list of swap areas without any area.
const SWAP_HEADER_LINES: usize = 1;

/// The kind of memory below stored keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// `memfd_secret`: the kernel itself does not map the pages and never swaps them.
    Secret,
    /// A memfd that is sealed against resizing, on a machine without active swap.
    SealedMemfd,
}

impl MemoryKind {
    /// Returns the name of the kind for people.
    pub const fn name(self) -> &'static str {
        match self {
            MemoryKind::Secret => "memfd_secret",
            MemoryKind::SealedMemfd => "sealed memfd",
        }
    }
}

/// No memory for keys on this machine: keys end with the process.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryUnavailable {
    /// The kernel lacks `memfd_secret`, and a memfd could reach a disk.
    #[error(
        "swap is active and the kernel has no memfd_secret: keys are not stored. Boot with \
         secretmem.enable=1, or end the swap with `swapoff -a`"
    )]
    Swap,
    /// The operating system's error.
    #[error("keys are not stored: {0}")]
    System(String),
}

/// A descriptor that holds no usable memory of an earlier process.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DescriptorRefused {
    /// Neither `memfd_secret` nor a memfd with the seals against resizing.
    #[error("the stored descriptor is neither memfd_secret nor a memfd sealed against resizing")]
    Unsealed,
    /// A memory of another size.
    #[error("the stored memory has {found} bytes instead of {expected}")]
    Length {
        /// Bytes of the memory.
        found: u64,
        /// Bytes of a memory of this version.
        expected: u64,
    },
    /// A memfd, and swap became active.
    #[error("swap is active: keys in a memfd are not used")]
    Swap,
    /// The memory begins with no header of this version.
    #[error("the stored memory has no header of this version")]
    Foreign,
    /// The manager passed more than one memory.
    #[error("more than one memory of keys was stored: none is used")]
    Ambiguous,
    /// The operating system's error.
    #[error("the stored memory cannot be used: {0}")]
    System(String),
}

/// Returns the kind of memory that keys would be stored in now.
///
/// # Errors
/// The reason why keys cannot be stored.
pub fn supported_kind() -> Result<MemoryKind, MemoryUnavailable> {
    create(1).map(|(_, kind)| kind)
}

/// Makes a memory of a fixed length, all zero.
pub(crate) fn create(bytes: u64) -> Result<(OwnedFd, MemoryKind), MemoryUnavailable> {
    if let Some(descriptor) = create_secret() {
        ftruncate(&descriptor, bytes).map_err(unavailable)?;
        return Ok((descriptor, MemoryKind::Secret));
    }
    create_sealed(bytes, is_swap_active()).map(|memory| (memory, MemoryKind::SealedMemfd))
}

/// State of the machine's swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Swap {
    Active,
    Inactive,
}

fn create_sealed(bytes: u64, swap: Swap) -> Result<OwnedFd, MemoryUnavailable> {
    if swap == Swap::Active {
        return Err(MemoryUnavailable::Swap);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = memfd_create("lockgate-keys", flags).map_err(unavailable)?;
    ftruncate(&descriptor, bytes).map_err(unavailable)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&descriptor, seals).map_err(unavailable)?;
    Ok(descriptor)
}

/// A descriptor of `memfd_secret`; `None`: the kernel has none or switched it off.
fn create_secret() -> Option<OwnedFd> {
    // SAFETY: the call takes one integer and touches no memory of ours.
    // Threat: none; an old kernel answers ENOSYS.
    let number = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    let number = i32::try_from(number).ok().filter(|number| *number >= 0)?;
    // SAFETY: the kernel has just opened the descriptor for us, and nobody else has its number.
    // Threat: code that closes descriptors by number in another thread.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Checks a descriptor from outside: its kind, and the length that nobody can change any more.
pub(crate) fn check(descriptor: &OwnedFd, expected: u64) -> Result<MemoryKind, DescriptorRefused> {
    check_with(descriptor, expected, is_swap_active())
}

fn check_with(
    descriptor: &OwnedFd,
    expected: u64,
    swap: Swap,
) -> Result<MemoryKind, DescriptorRefused> {
    let kind = kind_of(descriptor)?;
    if kind == MemoryKind::SealedMemfd && swap == Swap::Active {
        return Err(DescriptorRefused::Swap);
    }
    let found = fstat(descriptor).map_err(refused)?.st_size as u64;
    match found == expected {
        true => Ok(kind),
        false => Err(DescriptorRefused::Length { found, expected }),
    }
}

fn kind_of(descriptor: &OwnedFd) -> Result<MemoryKind, DescriptorRefused> {
    let filesystem = fstatfs(descriptor).map_err(refused)?;
    if filesystem.f_type as u64 == SECRET_MEMORY_TYPE {
        return Ok(MemoryKind::Secret);
    }
    let seals = fcntl_get_seals(descriptor).map_err(|_| DescriptorRefused::Unsealed)?;
    match seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        true => Ok(MemoryKind::SealedMemfd),
        false => Err(DescriptorRefused::Unsealed),
    }
}

/// Active unless the kernel's list of swap areas is readable and empty.
fn is_swap_active() -> Swap {
    match std::fs::read_to_string("/proc/swaps") {
        Ok(list) if list.lines().count() <= SWAP_HEADER_LINES => Swap::Inactive,
        // A kernel without swap has no list.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Swap::Inactive,
        _ => Swap::Active,
    }
}

/// Maps the words of a checked memory for as long as the process lives.
pub(crate) fn map(descriptor: &OwnedFd, words: usize) -> std::io::Result<&'static [AtomicU64]> {
    let file = File::from(descriptor.as_fd().try_clone_to_owned()?);
    let mapping = MmapOptions::new().len(words * size_of::<AtomicU64>()).map_raw(&file)?;
    // Children do not inherit keys, and a core file does not contain them. The kernel keeps secret
    // memory out of core files by itself.
    mapping.advise(Advice::DontFork)?;
    mapping.advise(Advice::DontDump)?;
    let mapping: &'static MmapRaw = Box::leak(Box::new(mapping));
    // SAFETY: the mapping is leaked, so it stays; it is page-aligned, writable and `words` long.
    // `create` and `check` keep the length from changing. All access is by these atomic words.
    // Threat: a fault of a page when the machine has no memory left; the process ends by SIGBUS.
    Ok(unsafe { std::slice::from_raw_parts(mapping.as_mut_ptr().cast(), words) })
}

fn unavailable(error: rustix::io::Errno) -> MemoryUnavailable {
    MemoryUnavailable::System(error.to_string())
}

fn refused(error: rustix::io::Errno) -> DescriptorRefused {
    DescriptorRefused::System(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 8192;

    #[test]
    fn active_swap_forbids_a_memfd_and_its_reuse() {
        let refusal = create_sealed(BYTES, Swap::Active).unwrap_err();
        assert_eq!(refusal, MemoryUnavailable::Swap);
        let memory = create_sealed(BYTES, Swap::Inactive).unwrap();
        let kind = check_with(&memory, BYTES, Swap::Inactive);
        assert_eq!(kind, Ok(MemoryKind::SealedMemfd));
        let kind = check_with(&memory, BYTES, Swap::Active);
        assert_eq!(kind, Err(DescriptorRefused::Swap));
    }

    #[test]
    fn unsealed_memory_and_plain_files_are_refused() {
        let memory = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, BYTES).unwrap();
        let check = |memory: &OwnedFd| check_with(memory, BYTES, Swap::Inactive);
        assert_eq!(check(&memory), Err(DescriptorRefused::Unsealed));
        fcntl_add_seals(&memory, SealFlags::GROW).unwrap();
        assert_eq!(check(&memory), Err(DescriptorRefused::Unsealed));
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(check(&file.into()), Err(DescriptorRefused::Unsealed));
    }

    #[test]
    fn memory_of_another_length_is_refused_and_cannot_be_resized() {
        let sealed = create_sealed(BYTES, Swap::Inactive).unwrap();
        let secret = create_secret().inspect(|memory| ftruncate(memory, BYTES).unwrap());
        for memory in [Some(sealed), secret].into_iter().flatten() {
            let length = DescriptorRefused::Length { found: BYTES, expected: BYTES * 2 };
            assert_eq!(check_with(&memory, BYTES * 2, Swap::Inactive), Err(length));
            assert!(ftruncate(&memory, BYTES * 2).is_err());
            assert!(ftruncate(&memory, 0).is_err());
            assert!(check_with(&memory, BYTES, Swap::Inactive).is_ok());
        }
    }
}
