# A small image without a shell: the gateway, the libraries it is linked with, certificates and time zones.
#
#   docker build -t tollgate .                       takes as long as a release build
#   docker build -t tollgate --build-arg PGO=1 .     trained on the proxy's own load: three times as long
#   docker buildx build --platform linux/amd64,linux/arm64 -t tollgate .     for both: the other one is cross-compiled, untrained
#   buildah build --format docker -t tollgate .      the format of Docker: OCI images have no HEALTHCHECK
#   docker run --stop-timeout 45 -p 8080:8080 -v ./gateway.toml:/etc/tollgate/gateway.toml:ro -v tollgate:/var/lib/tollgate tollgate
#
# BUILD_IMAGE may be any image with a Rust toolchain on Debian.
ARG BUILD_IMAGE=rust:1.95-bookworm

FROM --platform=$BUILDPLATFORM ${BUILD_IMAGE} AS build
ARG PGO=0
# The architecture of the image: amd64 or arm64. Default: that of the machine that builds it.
ARG TARGETARCH
WORKDIR /src
RUN apt-get update -q \
 && apt-get install -qy --no-install-recommends gcc libc6-dev make binutils ca-certificates tzdata \
 && if [ "${TARGETARCH:-$(dpkg --print-architecture)}" != "$(dpkg --print-architecture)" ]; then \
      case "$TARGETARCH" in arm64) machine=aarch64 ;; *) machine=x86-64 ;; esac; \
      apt-get install -qy --no-install-recommends "gcc-$machine-linux-gnu" "libc6-dev-$TARGETARCH-cross"; \
    elif [ "$PGO" = 1 ]; then \
      apt-get install -qy --no-install-recommends python3 nginx-light wrk nghttp2-client bolt-22 && rustup component add llvm-tools; \
    fi \
 && rm -rf /var/lib/apt/lists/*
COPY . .
RUN if [ "$PGO" = 1 ] && [ "${TARGETARCH:-$(dpkg --print-architecture)}" = "$(dpkg --print-architecture)" ]; then \
      benches/proxy/build-pgo && cp target/pgo/tollgate /tollgate; \
    else \
      binary=$(packaging/build "$TARGETARCH") && cp "$binary" /tollgate; \
    fi \
 && packaging/image-tree /tollgate /image

FROM scratch
COPY --from=build /image/ /
LABEL org.opencontainers.image.title="tollgate" \
      org.opencontainers.image.description="A rate-limiting reverse-proxy gateway" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
ENV TOLLGATE_CONFIG=/etc/tollgate/gateway.toml
# Local buckets over a restart are kept here: `docker restart` keeps them, a new container wants a volume of its own.
ENV STATE_DIRECTORY=/var/lib/tollgate
USER 65532:65532
WORKDIR /var/lib/tollgate
EXPOSE 8080
STOPSIGNAL SIGTERM
# The binary probes itself: there is no shell and no curl here. Whether the process lives, not whether it is ready: what acts
# on this restarts it, and that mends neither a store nor an upstream. It gives up after 2 s by itself (--timeout) and says
# why; the limit here is longer, so that its words are in the log of the check.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/bin/tollgate", "health", "--live"]
ENTRYPOINT ["/usr/bin/tollgate"]
CMD ["run"]
