//! The image beside the database: written at checkpoints, loaded at a cold start.

use std::path::PathBuf;

use super::SqliteStore;
use crate::image::{self, Ignored, Origin};
use crate::{Change, Store, StoreError, files};

/// The way that the endpoints came at a start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Start {
    /// From the image, and the changes of later commits from the log.
    Image {
        /// The commit that the image was written after.
        at: u64,
        /// Changes of later commits.
        replayed: u64,
    },
    /// From the database.
    Snapshot {
        /// The reason why the image was ignored.
        because: Ignored,
    },
}

impl SqliteStore {
    /// Returns the path of the image: the database's, with `.image` behind it.
    pub fn image_path(&self) -> PathBuf {
        files::beside(&self.path, ".image")
    }

    /// Writes the image of the last commit; the old one stays until the new one is durable. Takes
    /// as long as a snapshot. Due when the log would soon not reach back to the last image
    /// ([`crate::Limits::log`]), and when the daemon ends. Returns the commit's number.
    ///
    /// # Errors
    /// [`StoreError::Full`] and others of the system: the old image is still there.
    pub fn write_image(&mut self) -> Result<u64, StoreError> {
        let (path, number) = (self.image_path(), self.number());
        let mark = self.mark_of(number)?.ok_or_else(|| StoreError::illegible(&self.path))?;
        let origin = Origin { store: self.identity, number, mark: mark as u64 };
        image::write(&path, origin, |each| self.snapshot(each).map(drop))?;
        Ok(number)
    }

    /// Gives `each` what the caller needs to know all endpoints: from the image and the log if the
    /// image can be trusted, else a snapshot. From the log a key may come again; the later change
    /// counts. Returns the number of the last commit and which way it went.
    ///
    /// An image that is damaged, of another store, of another history of this one (a copy was put
    /// back), or older than the log is ignored before `each` is called.
    ///
    /// # Errors
    /// The database cannot be read: what `each` was given so far is not the whole.
    pub fn start(&mut self, each: &mut dyn FnMut(Change)) -> Result<(u64, Start), StoreError> {
        match self.trusted_image()? {
            Ok(image) => {
                image.each(each);
                let at = image.origin().number;
                let mut replayed = 0;
                let number = self.watch(at, &mut |_, change| {
                    replayed += 1;
                    each(change);
                })?;
                Ok((number, Start::Image { at, replayed }))
            }
            Err(because) => {
                let number = self.snapshot(each)?;
                Ok((number, Start::Snapshot { because }))
            }
        }
    }

    /// Reads the image and checks that it is of this store's history.
    fn trusted_image(&self) -> Result<Result<image::Image, Ignored>, StoreError> {
        let image = match image::read(&self.image_path()) {
            Ok(image) => image,
            Err(ignored) => return Ok(Err(ignored)),
        };
        let Origin { store, number, mark } = image.origin();
        if store != self.identity {
            return Ok(Err(Ignored::OtherStore));
        }
        if number > self.log.newest {
            return Ok(Err(Ignored::Ahead { image: number, store: self.log.newest }));
        }
        Ok(match self.mark_of(number)? {
            None => Err(Ignored::TooOld { image: number, oldest: self.log.oldest }),
            Some(found) if found as u64 != mark => Err(Ignored::OtherHistory { image: number }),
            Some(_) => Ok(image),
        })
    }
}
