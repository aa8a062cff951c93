//! gRPC's reflection: describes the services and their messages to clients such as grpcurl.
//!
//! The descriptions are the files of `proto/`, which define as much as [`crate::messages`]; a client
//! that knows more fields than these reads and writes the others as unknown.

use std::sync::LazyLock;

use prost::Message;

use crate::messages::{
    Files, ReflectionAsked, ReflectionError, ReflectionReply, ReflectionRequest,
    ReflectionResponse, ServiceName, Services,
};

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

/// The files of `proto/`, as protoc has compiled them into `descriptors.bin`.
static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    // (A test compiles the files again and compares.)
    let set = DescriptorSet::decode(SET).unwrap_or_default();
    set.files.iter().map(|file| File::of(file)).collect()
});

const SET: &[u8] = include_bytes!("reflection/descriptors.bin");

#[derive(Default)]
struct File {
    name: String,
    imports: Vec<String>,
    services: Vec<String>,
    /// The full names of its messages, enums, services and methods.
    symbols: Vec<String>,
    /// The file as a `google.protobuf.FileDescriptorProto`.
    encoded: Vec<u8>,
}

impl File {
    fn of(encoded: &[u8]) -> Self {
        let file = FileDescriptor::decode(encoded).unwrap_or_default();
        let mut symbols = Vec::new();
        for message in &file.messages {
            message.names(&file.package, &mut symbols);
        }
        let named = |one: &Named| format!("{}.{}", file.package, one.name);
        symbols.extend(file.enums.iter().map(named));
        let mut services = Vec::new();
        for service in &file.services {
            let name = format!("{}.{}", file.package, service.name);
            let methods = service.methods.iter();
            symbols.extend(methods.map(|method| format!("{name}.{}", method.name)));
            services.push(name);
        }
        symbols.extend(services.iter().cloned());
        Self {
            name: file.name,
            imports: file.imports,
            services,
            symbols,
            encoded: encoded.to_vec(),
        }
    }
}

/// `google.protobuf.FileDescriptorSet`; of it and of what it contains only what is read here.
#[derive(Clone, PartialEq, Message)]
struct DescriptorSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct FileDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    package: String,
    #[prost(string, repeated, tag = "3")]
    imports: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<Descriptor>,
    #[prost(message, repeated, tag = "5")]
    enums: Vec<Named>,
    #[prost(message, repeated, tag = "6")]
    services: Vec<Service>,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    nested: Vec<Descriptor>,
    #[prost(message, repeated, tag = "4")]
    enums: Vec<Named>,
}

impl Descriptor {
    fn names(&self, within: &str, names: &mut Vec<String>) {
        let own = format!("{within}.{}", self.name);
        names.extend(self.enums.iter().map(|one| format!("{own}.{}", one.name)));
        for nested in &self.nested {
            nested.names(&own, names);
        }
        names.push(own);
    }
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    methods: Vec<Named>,
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
