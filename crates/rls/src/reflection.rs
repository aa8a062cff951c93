//! gRPC's reflection: describes the services and their messages to clients such as grpcurl.
//!
//! The descriptions are the files of `proto/`, which define as much as [`crate::messages`]; a client
//! that knows more fields than these reads and writes the others as unknown.

mod files;

use crate::messages::{
    Files, ReflectionAsked, ReflectionError, ReflectionReply, ReflectionRequest,
    ReflectionResponse, ServiceName, Services,
};
use files::FILES;

pub(crate) fn respond(request: ReflectionRequest) -> ReflectionResponse {
    let reply = match &request.asked {
        Some(ReflectionAsked::ListServices(_)) => ReflectionReply::Services(Services {
            services: services(),
        }),
        Some(ReflectionAsked::FileByFilename(name)) => {
            files(FILES.iter().position(|file| file.name == *name))
        }
        Some(ReflectionAsked::FileContainingSymbol(symbol)) => {
            files(FILES.iter().position(|file| file.symbols.contains(symbol)))
        }
        Some(
            ReflectionAsked::FileContainingExtension(_)
            | ReflectionAsked::AllExtensionNumbersOfType(_),
        ) => not_found("there are no extensions"),
        None => ReflectionReply::Error(ReflectionError {
            code: 3,
            message: "the request asks for nothing".to_owned(),
        }),
    };
    ReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        reply: Some(reply),
    }
}

fn files(found: Option<usize>) -> ReflectionReply {
    let Some(found) = found else {
        return not_found("there is no such file or symbol");
    };
    let mut wanted = vec![found];
    let mut next = 0;
    while let Some(at) = wanted.get(next).copied() {
        for import in &FILES[at].imports {
            let place = FILES.iter().position(|file| file.name == *import);
            wanted.extend(place.filter(|place| !wanted.contains(place)));
        }
        next += 1;
    }
    ReflectionReply::Files(Files {
        files: wanted
            .into_iter()
            .map(|at| FILES[at].encoded.clone())
            .collect(),
    })
}

fn not_found(message: &str) -> ReflectionReply {
    ReflectionReply::Error(ReflectionError {
        code: 5,
        message: message.to_owned(),
    })
}

fn services() -> Vec<ServiceName> {
    let names = FILES.iter().flat_map(|file| file.services.iter().cloned());
    names.map(|name| ServiceName { name }).collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    fn files_below(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                files_below(&path, files);
            } else {
                files.push(path);
            }
        }
    }

    /// `BLESS=1` compiles the files anew.
    #[test]
    fn reflection_descriptors_are_the_files_of_proto_compiled() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let made = std::env::temp_dir().join(format!("descriptors-{}.bin", std::process::id()));
        let mut files = Vec::new();
        files_below(&home.join("proto"), &mut files);
        files.sort();
        let compiled = Command::new("protoc")
            .arg("--proto_path")
            .arg(home.join("proto"))
            .arg(format!("--descriptor_set_out={}", made.display()))
            .args(&files)
            .status();
        let Ok(status) = compiled else {
            assert!(std::env::var_os("CI").is_none(), "protoc is missing");
            eprintln!("SKIPPED: protoc is missing");
            return;
        };
        assert!(status.success() && files.len() >= 9, "{files:?}");
        let new = std::fs::read(&made).expect("protoc has written it");
        let _ = std::fs::remove_file(&made);
        let known = home.join("src/reflection/descriptors.bin");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&known, &new).expect("written");
        }
        let known = std::fs::read(&known).expect("the descriptors");
        assert!(
            known == new,
            "compile them anew: BLESS=1 cargo test -p tollgate-rls"
        );
    }
}
