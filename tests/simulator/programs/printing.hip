// Needs the host at run time. Compiled with AMD's device library, whose options are constants.
extern "C" {
__attribute__((constant)) extern const int __oclc_ABI_version = 500, __oclc_ISA_version = 9402;

__attribute__((device)) int printf(const char*, ...);

__attribute__((global)) void talk(int* x) {
  printf("%d\n", *x);
  *x = 1;
}
__attribute__((global)) void stay_silent(int* x) { *x = 2; }
}
