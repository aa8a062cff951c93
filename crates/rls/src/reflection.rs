//! gRPC's reflection: describes the services and their messages to clients such as grpcurl.
//!
//! The descriptions are tables of this file, as far as [`crate::messages`] goes; a client that knows
//! more fields than these reads and writes the others as unknown.

mod files;

use std::sync::LazyLock;

use prost::Message;

use crate::messages::{
    Files, ReflectionAsked, ReflectionError, ReflectionRequest, ReflectionResponse, ReflectionTold,
    ServiceName, Services,
};
use files::{FILES, File};

/// The encoded files, in the order of [`FILES`].
static ENCODED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    FILES
        .iter()
        .map(|file| file.descriptor().encode_to_vec())
        .collect()
});

/// The response to one request.
pub(crate) fn respond(request: ReflectionRequest) -> ReflectionResponse {
    let told = match &request.asked {
        Some(ReflectionAsked::ListServices(_)) => ReflectionTold::Services(Services {
            services: services(),
        }),
        Some(ReflectionAsked::FileByFilename(name)) => {
            files(FILES.iter().position(|file| file.name == name))
        }
        Some(ReflectionAsked::FileContainingSymbol(symbol)) => {
            files(FILES.iter().position(|file| file.defines(symbol)))
        }
        Some(
            ReflectionAsked::FileContainingExtension(_)
            | ReflectionAsked::AllExtensionNumbersOfType(_),
        ) => not_found("there are no extensions"),
        None => ReflectionTold::Error(ReflectionError {
            code: 3,
            message: "the request asks for nothing".to_owned(),
        }),
    };
    ReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        told: Some(told),
    }
}

/// A file with those that it imports.
fn files(found: Option<usize>) -> ReflectionTold {
    let Some(found) = found else {
        return not_found("there is no such file or symbol");
    };
    let mut wanted = vec![found];
    let mut next = 0;
    while let Some(at) = wanted.get(next).copied() {
        for import in FILES[at].imports {
            let place = FILES.iter().position(|file| file.name == *import);
            wanted.extend(place.filter(|place| !wanted.contains(place)));
        }
        next += 1;
    }
    ReflectionTold::Files(Files {
        files: wanted.into_iter().map(|at| ENCODED[at].clone()).collect(),
    })
}

fn not_found(message: &str) -> ReflectionTold {
    ReflectionTold::Error(ReflectionError {
        code: 5,
        message: message.to_owned(),
    })
}

fn services() -> Vec<ServiceName> {
    let of_file = |file: &'static File| {
        file.services
            .iter()
            .map(move |service| format!("{}.{}", file.package, service.name))
    };
    let names = FILES.iter().flat_map(of_file);
    names.map(|name| ServiceName { name }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a file refers to is in the file or in one that it imports.
    #[test]
    fn reflection_every_type_and_import_is_described() {
        for file in FILES {
            let known: Vec<String> = FILES
                .iter()
                .filter(|other| file.name == other.name || file.imports.contains(&other.name))
                .flat_map(File::types)
                .collect();
            for import in file.imports {
                assert!(FILES.iter().any(|other| other.name == *import), "{import}");
            }
            for used in file.uses() {
                assert!(known.contains(&used), "{}: {used}", file.name);
            }
        }
    }
}
