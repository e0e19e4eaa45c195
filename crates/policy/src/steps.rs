//! A bound on how long a search takes.

/// The steps that a search may still take.
pub(crate) struct Steps(pub(crate) u64);

/// The error of a search that has too few steps left.
#[derive(Debug)]
pub(crate) struct Exhausted;

impl Steps {
    /// Takes steps.
    ///
    /// # Errors
    /// [`Exhausted`] if fewer are left.
    pub(crate) fn take(&mut self, steps: u64) -> Result<(), Exhausted> {
        self.0 = self.0.checked_sub(steps).ok_or(Exhausted)?;
        Ok(())
    }
}
