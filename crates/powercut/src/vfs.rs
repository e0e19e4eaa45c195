//! The face of the disk to SQLite: a virtual file system (<https://sqlite.org/vfs.html>).
//!
//! Files have methods of version 1, so there is no shared memory: a database in WAL mode must be
//! opened with `locking_mode = EXCLUSIVE`. Locks are always granted: one connection a database.
//! Time, sleep and randomness are those of the default file system.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;

use rusqlite::ffi::{
    SQLITE_CANTOPEN, SQLITE_FULL, SQLITE_IOCAP_POWERSAFE_OVERWRITE, SQLITE_IOERR,
    SQLITE_IOERR_DELETE_NOENT, SQLITE_IOERR_FSYNC, SQLITE_IOERR_SHORT_READ, SQLITE_NOTFOUND,
    SQLITE_OK, SQLITE_OPEN_CREATE, SQLITE_OPEN_DELETEONCLOSE, sqlite3_file, sqlite3_filename,
    sqlite3_int64, sqlite3_io_methods, sqlite3_vfs, sqlite3_vfs_find, sqlite3_vfs_register,
};

use crate::disk::{DirectorySync, Fault, Shared, find, locked};

const NAME: &CStr = c"powercut";

/// A file that SQLite has open: `base` comes first, as SQLite sees nothing else.
#[repr(C)]
struct OpenFile {
    base: sqlite3_file,
    /// From `Box::into_raw`, until [`close`].
    handle: *mut Handle,
}

struct Handle {
    disk: Shared,
    name: String,
    deletes_on_close: bool,
}

static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(grant),
    xUnlock: Some(grant),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// Makes the file system known to SQLite, and returns the name to open a database in it by.
///
/// # Panics
/// SQLite has no file system of its own, or no memory.
pub fn name() -> &'static CStr {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: SQLite initialises itself here, and its default file system is there and valid
        // for as long as the process. Threat: a null pointer, which is checked.
        let default = unsafe { sqlite3_vfs_find(std::ptr::null()).as_ref() };
        let mut ours = *default.expect("SQLite has a file system");
        ours.szOsFile = size_of::<OpenFile>() as c_int;
        ours.pNext = std::ptr::null_mut();
        ours.zName = NAME.as_ptr();
        ours.xOpen = Some(open);
        ours.xDelete = Some(delete);
        ours.xAccess = Some(access);
        ours.xFullPathname = Some(full_pathname);
        let ours = Box::leak(Box::new(ours));
        // SAFETY: the structure is leaked, so it is there for ever, and has another name than any.
        // Threat: SQLite would call functions of a structure that is gone.
        let code = unsafe { sqlite3_vfs_register(ours, 0) };
        assert_eq!(code, SQLITE_OK);
    });
    NAME
}

fn code(result: Result<(), Fault>) -> c_int {
    match result {
        Ok(()) => SQLITE_OK,
        Err(Fault::Full) => SQLITE_FULL,
        Err(Fault::Sync) => SQLITE_IOERR_FSYNC,
        Err(Fault::Missing) => SQLITE_IOERR,
    }
}

/// Returns the path that SQLite passes.
///
/// # Safety
/// It is null or ends with a zero, and stays until the caller returns.
unsafe fn path<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        return None;
    }
    // SAFETY: as the caller promises. Threat: reading behind the end of a string.
    unsafe { CStr::from_ptr(name) }.to_str().ok()
}

/// Returns the handle of a file that SQLite has open.
///
/// # Safety
/// [`open`] filled the file, and [`close`] has not been called for it.
unsafe fn handle<'a>(file: *mut sqlite3_file) -> &'a Handle {
    // SAFETY: as the caller promises, `file` is the first field of an `OpenFile` whose handle is a
    // box's. Nobody has a mutable reference to it. Threat: use after `close` freed it.
    unsafe { &*(*file.cast::<OpenFile>()).handle }
}

/// # Safety
/// SQLite calls it: `file` has room for `szOsFile` bytes, and `name` and `out` are null or valid.
unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let file = file.cast::<OpenFile>();
    // SAFETY: there is room for an `OpenFile`, as `szOsFile` says; SQLite aligns it. Without
    // methods SQLite does not close what was not opened. Threat: a write behind the allocation.
    unsafe { (*file).base.pMethods = std::ptr::null() };
    // SAFETY: SQLite's names end with a zero. Threat: as in `path`.
    let Some((disk, name)) = unsafe { path(name) }.and_then(find) else {
        return SQLITE_CANTOPEN;
    };
    {
        let mut state = locked(&disk);
        if flags & SQLITE_OPEN_CREATE == 0 && !state.exists(name) {
            return SQLITE_CANTOPEN;
        }
        state.create(name);
    }
    let deletes_on_close = flags & SQLITE_OPEN_DELETEONCLOSE != 0;
    let handle = Box::new(Handle { disk, name: name.to_owned(), deletes_on_close });
    // SAFETY: as above for `file`; `out` is null or a place for the flags. Threat: as above.
    unsafe {
        (*file).handle = Box::into_raw(handle);
        (*file).base.pMethods = &raw const METHODS;
        if !out.is_null() {
            *out = flags;
        }
    }
    SQLITE_OK
}

/// # Safety
/// SQLite calls it for a file that it opened, and never again.
unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: `open` put a box's pointer there, and nobody else takes it. Threat: a double free.
    let handle = unsafe { Box::from_raw((*file.cast::<OpenFile>()).handle) };
    // SAFETY: the file's memory is still SQLite's. Threat: a second call, which this prevents.
    unsafe { (*file).pMethods = std::ptr::null() };
    match handle.deletes_on_close {
        true => code(locked(&handle.disk).delete(&handle.name, DirectorySync::Later)),
        false => SQLITE_OK,
    }
}

/// # Safety
/// SQLite calls it: the file is open, and `into` has room for `count` bytes.
unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    into: *mut c_void,
    count: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite's buffer, which it does not touch meanwhile. Threat: a write behind its end.
    let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), count as usize) };
    into.fill(0);
    // SAFETY: the file is open. Threat: as in `handle`.
    let handle = unsafe { handle(file) };
    match locked(&handle.disk).read(&handle.name, at as usize, into) {
        Ok(found) if found == into.len() => SQLITE_OK,
        Ok(_) => SQLITE_IOERR_SHORT_READ,
        Err(fault) => code(Err(fault)),
    }
}

/// # Safety
/// SQLite calls it: the file is open, and `from` has `count` bytes.
unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    from: *const c_void,
    count: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite's buffer, which it does not change meanwhile. Threat: reading behind its end.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count as usize) };
    // SAFETY: the file is open. Threat: as in `handle`.
    let handle = unsafe { handle(file) };
    code(locked(&handle.disk).write(&handle.name, at as usize, from))
}

/// # Safety
/// SQLite calls it: the file is open.
unsafe extern "C" fn truncate(file: *mut sqlite3_file, length: sqlite3_int64) -> c_int {
    // SAFETY: the file is open. Threat: as in `handle`.
    let handle = unsafe { handle(file) };
    code(locked(&handle.disk).truncate(&handle.name, length as usize))
}

/// # Safety
/// SQLite calls it: the file is open.
unsafe extern "C" fn sync(file: *mut sqlite3_file, _: c_int) -> c_int {
    // SAFETY: the file is open. Threat: as in `handle`.
    let handle = unsafe { handle(file) };
    code(locked(&handle.disk).sync(&handle.name))
}

/// # Safety
/// SQLite calls it: the file is open, and `length` is a place for a number.
unsafe extern "C" fn file_size(file: *mut sqlite3_file, length: *mut sqlite3_int64) -> c_int {
    // SAFETY: the file is open. Threat: as in `handle`.
    let handle = unsafe { handle(file) };
    let found = locked(&handle.disk).length(&handle.name);
    code(found.map(|found| {
        // SAFETY: SQLite's own variable. Threat: a null pointer, which SQLite never passes here.
        unsafe { *length = found as sqlite3_int64 };
    }))
}

extern "C" fn grant(_: *mut sqlite3_file, _: c_int) -> c_int {
    SQLITE_OK
}

/// # Safety
/// SQLite calls it: `is_reserved` is a place for a number.
unsafe extern "C" fn check_reserved_lock(_: *mut sqlite3_file, is_reserved: *mut c_int) -> c_int {
    // SAFETY: SQLite's own variable. Threat: a null pointer, which SQLite never passes here.
    unsafe { *is_reserved = 0 };
    SQLITE_OK
}

extern "C" fn file_control(_: *mut sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    SQLITE_NOTFOUND
}

extern "C" fn sector_size(_: *mut sqlite3_file) -> c_int {
    4096
}

/// Says as SQLite assumes of every disk by default: a write that is torn spares its neighbours.
extern "C" fn device_characteristics(_: *mut sqlite3_file) -> c_int {
    SQLITE_IOCAP_POWERSAFE_OVERWRITE
}

/// # Safety
/// SQLite calls it: `name` ends with a zero.
unsafe extern "C" fn delete(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    syncs_directory: c_int,
) -> c_int {
    // SAFETY: SQLite's names end with a zero. Threat: as in `path`.
    let Some((disk, name)) = unsafe { path(name) }.and_then(find) else {
        return SQLITE_IOERR_DELETE_NOENT;
    };
    let directory = match syncs_directory {
        0 => DirectorySync::Later,
        _ => DirectorySync::Now,
    };
    match locked(&disk).delete(name, directory) {
        Err(Fault::Missing) => SQLITE_IOERR_DELETE_NOENT,
        result => code(result),
    }
}

/// # Safety
/// SQLite calls it: `name` ends with a zero, and `out` is a place for a number.
unsafe extern "C" fn access(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    _: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's names end with a zero. Threat: as in `path`.
    let found = unsafe { path(name) }.and_then(find);
    let exists = found.is_some_and(|(disk, name)| locked(&disk).exists(name));
    // SAFETY: SQLite's own variable. Threat: a null pointer, which SQLite never passes here.
    unsafe { *out = c_int::from(exists) };
    SQLITE_OK
}

/// # Safety
/// SQLite calls it: `name` ends with a zero, and `out` has room for `room` bytes.
unsafe extern "C" fn full_pathname(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite's names end with a zero. Threat: as in `path`.
    let name = unsafe { path(name) };
    let Some(name) = name else { return SQLITE_CANTOPEN };
    if name.len() >= room as usize {
        return SQLITE_CANTOPEN;
    }
    // SAFETY: SQLite's buffer of `room` bytes, which is no part of `name`; the name and a zero fit,
    // as was checked. Threat: a write behind its end.
    unsafe {
        out.cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), name.len());
        *out.add(name.len()) = 0;
    }
    SQLITE_OK
}
