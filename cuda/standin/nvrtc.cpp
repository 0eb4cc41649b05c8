// A stand-in for NVRTC, for tests: takes the source that the stand-in driver was built with, and no other.

#include <cstdlib>
#include <cstring>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

namespace {
const char IMAGE[] = "stand-in image";

unsigned compiled = 0;

struct Program {
    std::string source;
    std::string log;
};
}

/// Not one of the real ones: what is compiled here is kept apart from what they compile.
API unsigned nvrtcVersion(int *major, int *minor) {
    *major = 0;
    *minor = 1;
    return 0;
}

API unsigned nvrtcCreateProgram(Program **program, const char *source, const char *, int headers, const char *const *,
                                const char *const *) {
    *program = new Program{source, ""};
    return headers == 0 ? 0 : 3;
}

API unsigned nvrtcCompileProgram(Program *program, int, const char *const *) {
    compiled++;
    if (program->source.find("pccl_tree_level1") != std::string::npos ||
        program->source.find("pccl_encode_") != std::string::npos) {
        return 0;
    }
    program->log = "there is no such kernel";
    return 6;
}

API unsigned nvrtcGetPTXSize(Program *, size_t *bytes) {
    *bytes = sizeof IMAGE;
    return 0;
}

API unsigned nvrtcGetPTX(Program *, char *image) {
    std::memcpy(image, IMAGE, sizeof IMAGE);
    return 0;
}

API unsigned nvrtcGetProgramLogSize(Program *program, size_t *bytes) {
    *bytes = program->log.size() + 1;
    return 0;
}

API unsigned nvrtcGetProgramLog(Program *program, char *log) {
    std::memcpy(log, program->log.c_str(), program->log.size() + 1);
    return 0;
}

API unsigned nvrtcDestroyProgram(Program **program) {
    delete *program;
    *program = nullptr;
    return 0;
}

// Functions by which tests ask this library itself.

/// How often it has compiled.
API unsigned standin_compiled() {
    return compiled;
}
