//! The files of `proto/`, as protoc has compiled them into `descriptors.bin`.

use std::sync::LazyLock;

use prost::Message;

pub(super) static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    // (A test compiles the files again and compares.)
    let set = DescriptorSet::decode(SET).unwrap_or_default();
    set.files.iter().map(|file| File::of(file)).collect()
});

const SET: &[u8] = include_bytes!("descriptors.bin");

#[derive(Default)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) imports: Vec<String>,
    pub(super) services: Vec<String>,
    /// The full names of its messages, enums, services and methods.
    pub(super) symbols: Vec<String>,
    /// The file as a `google.protobuf.FileDescriptorProto`.
    pub(super) encoded: Vec<u8>,
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
