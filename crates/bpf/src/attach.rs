//! Attaches Lockgate's program to a netdev, replaces it in one step, detaches it, and tells which
//! program a netdev runs.
//!
//! The kernel is always told which program is expected to be there (or that none is), so that
//! nothing is lost when somebody else is quicker. Netdevs are those of the calling thread's
//! network namespace.
//!
//! Looking at a program takes CAP_SYS_ADMIN, unless it is ours and this process has attached or
//! seen it before: a daemon calls [`attached`] for each netdev before it gives the right away.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::{fmt, io};

use libbpf_rs::libbpf_sys::{
    self, XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE, XDP_FLAGS_UPDATE_IF_NOEXIST, bpf_xdp_attach_opts,
    bpf_xdp_query_opts,
};
use libbpf_rs::{ErrorKind, Program, ProgramHandle};

use crate::messages::with_messages;
use crate::{BpfError, PROGRAM, Steering, known, probe};

/// Number of looks at a netdev's program that changes meanwhile.
const ATTEMPTS: usize = 5;

/// The place in the kernel where a netdev runs its program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// In its driver, before a packet buffer is made: fast.
    Native,
    /// Behind its driver, for any netdev: slower.
    Generic,
    /// In the network card itself.
    Hardware,
}

impl Mode {
    /// Returns the name of the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
            Mode::Hardware => "hardware",
        }
    }

    /// Returns the word of `ip link set DEV … off` that takes a program in this mode off.
    pub const fn ip_word(self) -> &'static str {
        match self {
            Mode::Native => "xdpdrv",
            Mode::Generic => "xdpgeneric",
            Mode::Hardware => "xdpoffload",
        }
    }

    fn flag(self) -> u32 {
        match self {
            Mode::Native => XDP_FLAGS_DRV_MODE,
            Mode::Generic => XDP_FLAGS_SKB_MODE,
            Mode::Hardware => libbpf_sys::XDP_FLAGS_HW_MODE,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The modes in which a program may be attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ModeChoice {
    /// Native, else generic.
    #[default]
    Auto,
    /// Native or not at all.
    Native,
    /// Generic, even if the driver could.
    Generic,
}

impl ModeChoice {
    /// The modes to try, in their order.
    const fn modes(self) -> &'static [Mode] {
        match self {
            ModeChoice::Auto => &[Mode::Native, Mode::Generic],
            ModeChoice::Native => &[Mode::Native],
            ModeChoice::Generic => &[Mode::Generic],
        }
    }

    /// Returns whether a program that runs in `mode` may stay there.
    pub fn allows(self, mode: Mode) -> bool {
        self == ModeChoice::Auto || self.modes().contains(&mode)
    }
}

/// Reason why a netdev refused a program in one mode.
#[derive(Debug)]
pub struct NativeRefusal {
    /// The kernel's error.
    pub error: io::Error,
    /// The driver's own message.
    pub said: Option<String>,
}

impl fmt::Display for NativeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.said {
            Some(said) => write!(f, "{said} ({})", self.error),
            None => write!(f, "{}", self.error),
        }
    }
}

/// The result of attaching a program.
#[derive(Debug)]
pub struct Attached {
    /// The place where it runs.
    pub mode: Mode,
    /// Reason why it is not native, if that was tried and refused just now.
    pub native_refused: Option<NativeRefusal>,
    /// True if a program of Lockgate's was there before: it was replaced in one step, in its mode.
    pub replaced: bool,
}

/// The owner of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// Lockgate's, of this or an earlier process.
    Lockgate,
    /// Somebody else's.
    Foreign,
}

/// The program that a netdev runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachedProgram {
    /// Id of the program in the kernel.
    pub id: u32,
    /// Name of the program; `?` if this process may not ask.
    pub name: String,
    /// Owner of the program.
    pub owner: Owner,
    /// The place where it runs.
    pub mode: Mode,
}

impl Steering {
    /// Attaches the program to a netdev, in any mode: see [`Steering::attach_in`].
    ///
    /// # Errors
    /// As [`Steering::attach_in`].
    pub fn attach(&self, ifindex: u32) -> Result<Attached, BpfError> {
        self.attach_in(ifindex, ModeChoice::Auto)
    }

    /// Attaches the program to a netdev, in the first of the chosen modes that it takes. A program
    /// of ours that stands there is replaced in one step, in its mode; between the two no frame is
    /// missed.
    ///
    /// Sockets and tables are set before: from here on the netdev's frames are steered.
    ///
    /// # Errors
    /// [`BpfError::Foreign`]: another's program stays; [`BpfError::OtherMode`]: ours stands there
    /// in a mode that was not chosen; [`BpfError::NoXdp`], [`BpfError::ModeRefused`],
    /// [`BpfError::NoDevice`], [`BpfError::NotPermitted`], [`BpfError::Contended`],
    /// [`BpfError::Netdev`]. What was attached before still is.
    pub fn attach_in(&self, ifindex: u32, choice: ModeChoice) -> Result<Attached, BpfError> {
        let program = self.program()?;
        for _ in 0..ATTEMPTS {
            let done = match found(ifindex)? {
                None => attach_first(ifindex, program.as_fd(), choice)?,
                // The kernel runs one mode at a time: the old one would have to go first.
                Some((AttachedProgram { mode, .. }, Some(_))) if !choice.allows(mode) => {
                    return Err(BpfError::OtherMode { ifindex, mode });
                }
                Some((AttachedProgram { mode, .. }, Some(old))) => {
                    replace(ifindex, program.as_fd(), mode, &old)?
                }
                Some((AttachedProgram { id, name, .. }, None)) => {
                    return Err(BpfError::Foreign { ifindex, name, id });
                }
            };
            if let Some(attached) = done {
                if let Ok(id) = Program::id_from_fd(program.as_fd()) {
                    known::keep(ifindex, id, program.as_fd(), runs);
                }
                return Ok(attached);
            }
        }
        Err(BpfError::Contended { ifindex })
    }
}

/// The program that a netdev runs; `None`: none, or there is no such netdev.
///
/// # Errors
/// [`BpfError::NotPermitted`], [`BpfError::Netdev`], [`BpfError::Contended`].
pub fn attached(ifindex: u32) -> Result<Option<AttachedProgram>, BpfError> {
    Ok(found(ifindex)?.map(|(program, _)| program))
}

/// Takes our program off a netdev: from now on Linux gets all its frames. Returns whether there was
/// one.
///
/// # Errors
/// [`BpfError::Foreign`]: another's program stays; [`BpfError::NotPermitted`],
/// [`BpfError::Contended`], [`BpfError::Netdev`].
pub fn detach(ifindex: u32) -> Result<bool, BpfError> {
    for _ in 0..ATTEMPTS {
        let (mode, old) = match found(ifindex)? {
            None => return Ok(false),
            Some((AttachedProgram { mode, .. }, Some(old))) => (mode, old),
            Some((AttachedProgram { id, name, .. }, None)) => {
                return Err(BpfError::Foreign { ifindex, name, id });
            }
        };
        let (result, _) = set(ifindex, None, mode.flag(), Some(old.as_fd()));
        match result {
            Ok(()) => return Ok(true),
            Err(error) if is_race(&error) => {}
            Err(error) => return Err(netdev_error("detaching", ifindex, error)),
        }
    }
    Err(BpfError::Contended { ifindex })
}

/// Attaches the program where none is, in the first chosen mode that the netdev takes. `None`:
/// another process was quicker.
pub(crate) fn attach_first(
    ifindex: u32,
    program: BorrowedFd<'_>,
    choice: ModeChoice,
) -> Result<Option<Attached>, BpfError> {
    let mut native_refused = None;
    for &mode in choice.modes() {
        let flags = mode.flag() | XDP_FLAGS_UPDATE_IF_NOEXIST;
        let (result, said) = set(ifindex, Some(program), flags, None);
        let error = match result {
            Ok(()) => return Ok(Some(Attached { mode, native_refused, replaced: false })),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) if found(ifindex)?.is_some() => return Ok(None),
            Some(libc::EPERM | libc::EACCES | libc::ENODEV) => {
                return Err(netdev_error("attaching", ifindex, error));
            }
            _ => {}
        }
        let refusal = NativeRefusal { error, said };
        native_refused = match (choice, native_refused) {
            (ModeChoice::Auto, None) => Some(refusal),
            (ModeChoice::Auto, Some(native)) => {
                return Err(BpfError::NoXdp { ifindex, native, generic: refusal });
            }
            (ModeChoice::Native | ModeChoice::Generic, _) => {
                return Err(BpfError::ModeRefused { ifindex, mode, refusal });
            }
        };
    }
    Err(BpfError::Contended { ifindex })
}

/// Replaces the old program in one step, by naming it. `None`: it is not there any more.
fn replace(
    ifindex: u32,
    program: BorrowedFd<'_>,
    mode: Mode,
    old: &OwnedFd,
) -> Result<Option<Attached>, BpfError> {
    let (result, _) = set(ifindex, Some(program), mode.flag(), Some(old.as_fd()));
    match result {
        Ok(()) => Ok(Some(Attached { mode, native_refused: None, replaced: true })),
        Err(error) if is_race(&error) => Ok(None),
        Err(error) => Err(netdev_error("replacing", ifindex, error)),
    }
}

fn is_race(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EBUSY | libc::ENOENT))
}

/// Sets or removes a netdev's program; `expected` is the one that must be there. Also returns what
/// the kernel said.
fn set(
    ifindex: u32,
    program: Option<BorrowedFd<'_>>,
    flags: u32,
    expected: Option<BorrowedFd<'_>>,
) -> (io::Result<()>, Option<String>) {
    let options = bpf_xdp_attach_opts {
        sz: size_of::<bpf_xdp_attach_opts>() as _,
        old_prog_fd: expected.map_or(0, |fd| fd.as_raw_fd()),
        ..Default::default()
    };
    let program = program.map_or(-1, |fd| fd.as_raw_fd());
    let (code, messages) = with_messages(|| {
        // SAFETY: `options` is a whole structure that says its own size and outlives the call; the
        // descriptors are open for as long as they are borrowed. Threat: a read behind the options;
        // a number that means another program by then would attach that one.
        unsafe { libbpf_sys::bpf_xdp_attach(ifindex as c_int, program, flags, &options) }
    });
    let result = match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    };
    (result, messages.kernel())
}

/// The facts about the program that a netdev runs, with the program itself if it is Lockgate's.
type Found = (AttachedProgram, Option<Arc<OwnedFd>>);

fn found(ifindex: u32) -> Result<Option<Found>, BpfError> {
    for _ in 0..ATTEMPTS {
        let Some((id, mode)) = query(ifindex)? else { return Ok(None) };
        if let Some(program) = known::find(ifindex, id) {
            let (name, owner) = (PROGRAM.to_owned(), Owner::Lockgate);
            return Ok(Some((AttachedProgram { id, name, owner, mode }, Some(program))));
        }
        match ProgramHandle::from_prog_id(id) {
            Ok(handle) => {
                let name = handle.name().to_string_lossy().into_owned();
                let owner = if name == PROGRAM { Owner::Lockgate } else { Owner::Foreign };
                if owner == Owner::Lockgate {
                    known::keep(ifindex, id, handle.as_fd(), runs);
                }
                let program = known::find(ifindex, id);
                return Ok(Some((AttachedProgram { id, name, owner, mode }, program)));
            }
            // Everything else that we may do, we may: ours would be known.
            Err(error)
                if error.kind() == ErrorKind::PermissionDenied
                    && probe::missing_capabilities().is_none() =>
            {
                let (name, owner) = (String::from("?"), Owner::Foreign);
                return Ok(Some((AttachedProgram { id, name, owner, mode }, None)));
            }
            // It went away between the two questions.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                let code = match error.kind() {
                    ErrorKind::PermissionDenied => libc::EPERM,
                    _ => libc::EIO,
                };
                let source = io::Error::from_raw_os_error(code);
                return Err(netdev_error("looking at", ifindex, source));
            }
        }
    }
    Err(BpfError::Contended { ifindex })
}

/// Id of a netdev's program, if it can be had.
fn runs(ifindex: u32) -> Option<u32> {
    query(ifindex).ok().flatten().map(|(id, _)| id)
}

/// Id and mode of a netdev's program.
fn query(ifindex: u32) -> Result<Option<(u32, Mode)>, BpfError> {
    // Up to `attach_mode`: the rest asks the netdev's features, which older kernels do not know.
    let mut options = bpf_xdp_query_opts {
        sz: std::mem::offset_of!(bpf_xdp_query_opts, feature_flags) as _,
        ..Default::default()
    };
    let (code, _) = with_messages(|| {
        // SAFETY: `options` is a whole structure, larger than the size that it says, and outlives
        // the call. Threat: a write behind it.
        unsafe { libbpf_sys::bpf_xdp_query(ifindex as c_int, 0, &mut options) }
    });
    if code != 0 {
        let error = io::Error::from_raw_os_error(-code);
        return Err(netdev_error("looking at", ifindex, error));
    }
    let modes = [
        (options.drv_prog_id, Mode::Native),
        (options.skb_prog_id, Mode::Generic),
        (options.hw_prog_id, Mode::Hardware),
    ];
    Ok(modes.into_iter().find(|(id, _)| *id != 0))
}

fn netdev_error(doing: &'static str, ifindex: u32, source: io::Error) -> BpfError {
    match source.raw_os_error() {
        Some(libc::ENODEV) => BpfError::NoDevice { ifindex },
        Some(libc::EPERM | libc::EACCES) => match probe::missing_capabilities() {
            Some(missing) => BpfError::NotPermitted { missing },
            None => BpfError::Refused { lockdown: probe::lockdown() },
        },
        _ => BpfError::Netdev { doing, ifindex, source },
    }
}
