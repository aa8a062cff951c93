//! Directives of `nginx.conf`: words with a place, and the block that some of them open.

use std::cell::Cell;
use std::rc::Rc;

use crate::draft::Draft;
use crate::{ImportError, Place};

#[derive(Clone, Debug, Default)]
pub(crate) struct Directive {
    pub(crate) place: Place,
    pub(crate) name: String,
    pub(crate) args: Vec<String>,
    pub(crate) block: Vec<Directive>,
    /// Whether the report says what became of it.
    pub(crate) said: Rc<Cell<bool>>,
}

impl Directive {
    /// As the file has it, on one line.
    pub(crate) fn words(&self) -> String {
        let args = self.args.iter();
        args.fold(self.name.clone(), |words, arg| words + " " + arg)
    }

    pub(crate) fn arg(&self, index: usize) -> &str {
        self.args.get(index).map_or("", String::as_str)
    }

    pub(crate) fn all<'d>(&'d self, name: &'d str) -> impl Iterator<Item = &'d Self> {
        self.block.iter().filter(move |child| child.name == name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }
}

impl Draft {
    /// Says of a directive that it is not imported.
    pub(crate) fn lost(&mut self, directive: &Directive, why: &str) {
        directive.said.set(true);
        self.not_imported(&directive.place, &directive.words(), why);
    }
}

/// Blocks that are being read: a directive goes to the innermost one that is open.
pub(crate) struct Blocks {
    /// Blocks that are open, each with what is around it.
    open: Vec<(Directive, Vec<Directive>)>,
    here: Vec<Directive>,
    deepest: usize,
}

impl Blocks {
    pub(crate) const fn new(deepest: usize) -> Self {
        Self {
            open: Vec::new(),
            here: Vec::new(),
            deepest,
        }
    }

    pub(crate) fn add(&mut self, directives: impl IntoIterator<Item = Directive>) {
        self.here.extend(directives);
    }

    pub(crate) fn open(&mut self, directive: Directive) -> Result<(), ImportError> {
        if self.open.len() + 1 >= self.deepest {
            let what = format!("nested deeper than {} blocks", self.deepest);
            return Err(ImportError::broken(directive.place, what));
        }
        let around = std::mem::take(&mut self.here);
        self.open.push((directive, around));
        Ok(())
    }

    pub(crate) fn close(&mut self, at: Place) -> Result<(), ImportError> {
        let (mut directive, around) = self
            .open
            .pop()
            .ok_or_else(|| ImportError::broken(at, "`}` closes no block"))?;
        directive.block = std::mem::replace(&mut self.here, around);
        self.here.push(directive);
        Ok(())
    }

    /// All that was read. The mistake: a block that is still open.
    pub(crate) fn end(mut self) -> Result<Vec<Directive>, Directive> {
        match self.open.pop() {
            Some((directive, _)) => Err(directive),
            None => Ok(self.here),
        }
    }
}
